// Shell completion and manual page, made from the command line itself.
#include <cstdio>
#include <string>

#include "commands.h"

namespace flashoptim::tools {
namespace {

// Text for roff: nothing of it is a request.
std::string Roff(const std::string& text) {
  std::string escaped;
  bool at_line_start = true;
  for (const char character : text) {
    if (character == '-') {
      escaped += "\\-";
    } else if (character == '\\') {
      escaped += "\\e";
    } else {
      if (at_line_start && (character == '.' || character == '\'')) escaped += "\\&";
      escaped += character;
    }
    at_line_start = character == '\n';
  }
  return escaped;
}

bool IsOurs(const CLI::App* command) { return !command->get_name().empty(); }

void PrintManOptions(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string value =
        option->get_items_expected_max() != 0 && !option->get_positional() ? " \\fIVALUE\\fR" : "";
    std::printf(".TP\n\\fB%s\\fR%s\n%s", Roff(option->get_name(option->get_positional())).c_str(),
                value.c_str(), Roff(option->get_description()).c_str());
    if (!option->get_default_str().empty()) {
      std::printf(" (default: %s)", Roff(option->get_default_str()).c_str());
    }
    std::printf("\n");
  }
}

void PrintMan(const CLI::App& app) {
  std::printf(".TH FLASHOPTIM 1 \"\" \"flashoptim\"\n");
  std::printf(".SH NAME\nflashoptim \\- %s\n", Roff(app.get_description()).c_str());
  std::printf(".SH SYNOPSIS\n\\fBflashoptim\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]...\n");
  std::printf(".SH OPTIONS\n");
  PrintManOptions(app);
  std::printf(".SH COMMANDS\n");
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!IsOurs(command)) continue;
    std::printf(".SS %s\n%s\n", command->get_name().c_str(),
                Roff(command->get_description()).c_str());
    PrintManOptions(*command);
    std::printf(".PP\n.nf\n%s\n.fi\n", Roff(command->get_footer()).c_str());
  }
  std::printf(
      ".SH EXIT STATUS\n.TP\n0\nFine.\n.TP\n1\nA check failed, or a file was refused.\n.TP\n2\n"
      "Wrong usage.\n.TP\n3\nAnything else: no space, no memory, not in this build.\n");
  std::printf(
      ".SH ENVIRONMENT\n.TP\n\\fBFLASHOPTIM_CPU_TARGET\\fR\nForces an instruction set: avx512, "
      "avx2, neon or scalar.\n");
}

std::string LongNames(const CLI::App& command) {
  std::string names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names += (names.empty() ? "--" : " --") + name;
    }
  }
  return names;
}

void PrintBash(const CLI::App& app) {
  std::string commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (IsOurs(command)) commands += (commands.empty() ? "" : " ") + command->get_name();
  }
  std::printf(
      "# bash completion of flashoptim: eval \"$(flashoptim completion bash)\"\n"
      "_flashoptim() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" options=\"\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"%s %s\" -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  case \"${COMP_WORDS[1]}\" in\n",
      commands.c_str(), LongNames(app).c_str());
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!IsOurs(command)) continue;
    std::printf("    %s) options=\"%s\" ;;\n", command->get_name().c_str(),
                LongNames(*command).c_str());
  }
  std::printf(
      "  esac\n"
      "  if [[ \"$word\" == -* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
      "  else\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _flashoptim flashoptim\n");
}

}  // namespace

void AddSelfDescription(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's completion script");
  completion->add_option("shell", *shell, "bash")->required()->check(CLI::IsMember({"bash"}));
  completion->footer(
      "Examples:\n  eval \"$(flashoptim completion bash)\"\n"
      "  flashoptim completion bash > ~/.local/share/bash-completion/completions/flashoptim");
  completion->callback([&app, shell] { PrintBash(app); });
  CLI::App* man = app.add_subcommand("man", "Print the manual page");
  man->footer("Examples:\n  flashoptim man | man -l -");
  man->callback([&app] { PrintMan(app); });
}

}  // namespace flashoptim::tools
