// The manual page, made from the command line itself.
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
    std::printf(".SS %s\n%s\n", command->get_name().c_str(),
                Roff(command->get_description()).c_str());
    PrintManOptions(*command);
    std::printf(".PP\n.nf\n%s\n.fi\n", Roff(command->get_footer()).c_str());
  }
  std::printf(
      ".SH EXIT STATUS\n.TP\n0\nFine.\n.TP\n1\nA check failed, or a file was refused.\n.TP\n2\n"
      "Wrong usage.\n.TP\n3\nAnything else: no space, no memory, not in this build.\n");
  std::printf(
      ".SH ENVIRONMENT\n.TP\n\\fBFLASHOPTIM_CPU_TARGET\\fR\nForces an instruction set: "
      "avx512_vbmi, avx512, avx2, neon or scalar.\n");
}

}  // namespace

void AddMan(CLI::App& app) {
  CLI::App* man = app.add_subcommand("man", "Print the manual page");
  man->footer("Examples:\n  flashoptim man | man -l -");
  man->callback([&app] { PrintMan(app); });
}

}  // namespace flashoptim::tools
