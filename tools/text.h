// Numbers as people write and read them, and a progress bar.
#ifndef FLASHOPTIM_TOOLS_TEXT_H_
#define FLASHOPTIM_TOOLS_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"

namespace flashoptim::tools {

/// "8B", "1.5G", "4096": decimal suffixes K, M, G or B, T. Throws UsageError, naming `option`.
std::uint64_t ParseCount(const std::string& text, const std::string& option);

/// "14.96 GB": decimal units.
std::string Bytes(double bytes);

std::string Fixed(double value, int digits);

/// A text of somebody else's for a terminal: control characters are escaped.
std::string Printable(const std::string& text);

/// Prints rows with aligned columns, the first one to the left and the others to the right.
void PrintTable(const std::vector<std::vector<std::string>>& rows);

/// A bar on stderr if that is a terminal, else nothing.
FileProgress ProgressBar(const std::string& what);

}  // namespace flashoptim::tools

#endif  // FLASHOPTIM_TOOLS_TEXT_H_
