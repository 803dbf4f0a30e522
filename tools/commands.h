// The subcommands of the program `flashoptim`. Each adds itself to the command line and returns
// what runs it; exit codes are those of docs/command-line.md.
#ifndef FLASHOPTIM_TOOLS_COMMANDS_H_
#define FLASHOPTIM_TOOLS_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <stdexcept>

namespace flashoptim::tools {

enum ExitCode : int {
  kOk = 0,
  kRefused = 1,  ///< a check failed, or a file was refused
  kUsage = 2,
  kFailed = 3,  ///< anything else: no space, no memory, not in this build
};

/// What the arguments ask for makes no sense.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void AddPlan(CLI::App& app);
void AddInspect(CLI::App& app);
void AddVerify(CLI::App& app);
void AddConvert(CLI::App& app);
void AddInfo(CLI::App& app);
void AddBench(CLI::App& app);
/// These two are made from the command line itself, and added last.
void AddCompletion(CLI::App& app);
void AddMan(CLI::App& app);

}  // namespace flashoptim::tools

#endif  // FLASHOPTIM_TOOLS_COMMANDS_H_
