#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "commands.h"
#include "flashoptim/checkpoint.h"
#include "flashoptim/runtime.h"

namespace flashoptim::tools {
namespace {

int Run(int count, char** arguments) {
  CLI::App app("Memory plans, state files and measurements of flashoptim optimizers.",
               "flashoptim");
  app.set_version_flag("--version", Version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 fine, 1 a check failed or a file was refused, 2 wrong usage, 3 anything "
      "else.\n"
      "Examples: flashoptim COMMAND --help");
  AddPlan(app);
  AddInspect(app);
  AddVerify(app);
  AddConvert(app);
  AddInfo(app);
  AddBench(app);
  AddCompletion(app);
  AddMan(app);
  try {
    app.parse(count, arguments);
  } catch (const CLI::RequiredError& error) {
    if (count > 1 && arguments[1][0] != '-' && app.get_subcommands().empty()) {
      throw UsageError(std::string("there is no command '") + arguments[1] +
                       "'; flashoptim --help lists them");
    }
    return app.exit(error) == 0 ? kOk : kUsage;
  } catch (const CLI::ParseError& error) {
    // Help and version come this way too, with 0.
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return kOk;
}

int Guarded(int count, char** arguments) {
  try {
    return Run(count, arguments);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "flashoptim: %s\n", error.what());
    return kUsage;
  } catch (const FileError& error) {
    std::fprintf(stderr, "flashoptim: %s\n", error.what());
    return kRefused;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashoptim: %s\n", error.what());
    return kFailed;
  }
}

// Output that did not arrive is a failure.
int Flushed(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::perror("flashoptim: the output cannot be written");
  return code == kOk ? kFailed : code;
}

}  // namespace
}  // namespace flashoptim::tools

int main(int count, char** arguments) {
  return flashoptim::tools::Flushed(flashoptim::tools::Guarded(count, arguments));
}
