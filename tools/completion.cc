// Completion scripts of shells, made from the command line itself.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "commands.h"

namespace flashoptim::tools {
namespace {

using ForCommand = std::function<void(const CLI::App& command)>;
using ForOption = std::function<void(const CLI::Option& option, const std::string& name)>;

void EachCommand(const CLI::App& app, const ForCommand& call) {
  for (const CLI::App* command : app.get_subcommands({})) call(*command);
}

// Options by their long names.
void EachOption(const CLI::App& command, const ForOption& call) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) call(*option, name);
  }
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() != 0; }

// Puts `escape` before each of these characters.
std::string Escaped(std::string_view text, std::string_view characters, std::string_view escape) {
  std::string escaped;
  for (const char character : text) {
    if (characters.find(character) != std::string_view::npos) escaped += escape;
    escaped += character;
  }
  return escaped;
}

std::string LongNames(const CLI::App& command) {
  std::string names;
  EachOption(command, [&](const CLI::Option&, const std::string& name) {
    names += (names.empty() ? "--" : " --") + name;
  });
  return names;
}

void PrintBash(const CLI::App& app) {
  std::string commands;
  EachCommand(app, [&](const CLI::App& command) {
    commands += (commands.empty() ? "" : " ") + command.get_name();
  });
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
  EachCommand(app, [](const CLI::App& command) {
    std::printf("    %s) options=\"%s\" ;;\n", command.get_name().c_str(),
                LongNames(command).c_str());
  });
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

// Between single quotes of zsh.
std::string Zsh(std::string_view text) {
  std::string quoted;
  for (const char character : text) {
    if (character == '\'') {
      quoted += "'\\''";
    } else {
      quoted += character;
    }
  }
  return quoted;
}

void PrintZsh(const CLI::App& app) {
  std::printf(
      "#compdef flashoptim\n"
      "# zsh completion of flashoptim: eval \"$(flashoptim completion zsh)\"\n"
      "_flashoptim() {\n"
      "  local -a commands\n"
      "  commands=(\n");
  EachCommand(app, [](const CLI::App& command) {
    std::printf("    '%s:%s'\n", command.get_name().c_str(),
                Zsh(command.get_description()).c_str());
  });
  std::printf(
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n");
  EachCommand(app, [](const CLI::App& command) {
    std::printf("    %s)\n      _arguments", command.get_name().c_str());
    EachOption(command, [](const CLI::Option& option, const std::string& name) {
      const std::string said = Zsh(Escaped(option.get_description(), "[]:\\", "\\"));
      std::printf(" \\\n        '--%s[%s]%s'", name.c_str(), said.c_str(),
                  TakesValue(option) ? ":value: " : "");
    });
    std::printf(" \\\n        '*:file:_files'\n      ;;\n");
  });
  std::printf(
      "  esac\n"
      "}\n"
      "compdef _flashoptim flashoptim\n");
}

// Between single quotes of fish.
std::string Fish(std::string_view text) { return Escaped(text, "'\\", "\\"); }

void PrintFish(const CLI::App& app) {
  std::printf("# fish completion of flashoptim: flashoptim completion fish | source\n");
  EachCommand(app, [](const CLI::App& command) {
    std::printf("complete -c flashoptim -n __fish_use_subcommand -f -a %s -d '%s'\n",
                command.get_name().c_str(), Fish(command.get_description()).c_str());
  });
  EachCommand(app, [](const CLI::App& command) {
    EachOption(command, [&](const CLI::Option& option, const std::string& name) {
      std::printf("complete -c flashoptim -n '__fish_seen_subcommand_from %s' -l %s%s -d '%s'\n",
                  command.get_name().c_str(), name.c_str(), TakesValue(option) ? " -x" : "",
                  Fish(option.get_description()).c_str());
    });
  });
}

}  // namespace

void AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's completion script");
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer(
      "Examples:\n  eval \"$(flashoptim completion bash)\"\n"
      "  flashoptim completion bash > ~/.local/share/bash-completion/completions/flashoptim\n"
      "  eval \"$(flashoptim completion zsh)\"\n"
      "  flashoptim completion fish > ~/.config/fish/completions/flashoptim.fish");
  completion->callback([&app, shell] {
    if (*shell == "bash") PrintBash(app);
    if (*shell == "zsh") PrintZsh(app);
    if (*shell == "fish") PrintFish(app);
  });
}

}  // namespace flashoptim::tools
