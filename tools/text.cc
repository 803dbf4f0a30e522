#include "text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "commands.h"

namespace flashoptim::tools {
namespace {

constexpr int kBarWidth = 40;

}  // namespace

std::uint64_t ParseCount(const std::string& text, const std::string& option) {
  std::size_t end = 0;
  double value = -1.0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string suffix = text.substr(end);
  if (suffix.size() > 1 && suffix.back() == 'B') suffix.pop_back();  // "5GB"
  const std::string known = "KMGT";
  double scale = 0.0;
  if (suffix.empty()) scale = 1.0;
  if (suffix == "B") scale = 1e9;
  if (suffix.size() == 1 && known.find(suffix) != std::string::npos) {
    scale = std::pow(1000.0, static_cast<double>(known.find(suffix) + 1));
  }
  const double count = value * scale;
  if (end == 0 || scale == 0.0 || !(count >= 1.0 && count <= 1e15)) {
    throw UsageError(option + ": '" + text +
                     "' is not a number from 1 to 10^15; write for instance 4096, 125M or 8B");
  }
  return static_cast<std::uint64_t>(std::llround(count));
}

std::string Fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string Bytes(double bytes) {
  static constexpr std::array<const char*, 6> kUnits{"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 1000.0 && unit + 1 < kUnits.size()) {
    bytes /= 1000.0;
    ++unit;
  }
  return Fixed(bytes, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

std::string Printable(const std::string& text) {
  std::string printable;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // The second kind of control characters is U+0080 to U+009F, in UTF-8.
    const bool second = i > 0 && text[i - 1] == '\xc2' && byte >= 0x80 && byte < 0xa0;
    if (byte >= 0x20 && byte != 0x7f && !second) {
      printable += text[i];
      continue;
    }
    if (second) printable.pop_back();
    std::array<char, 8> escaped{};
    std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned>(byte));
    printable += escaped.data();
  }
  return printable;
}

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const int width = static_cast<int>(widths[i]);
      std::printf("%s%*s", i == 0 ? "" : "  ", i == 0 ? -width : width, row[i].c_str());
    }
    std::printf("\n");
  }
}

FileProgress ProgressBar(const std::string& what) {
  if (::isatty(STDERR_FILENO) == 0) return nullptr;
  auto last = std::make_shared<int>(-1);
  return [what, last](std::uint64_t done, std::uint64_t total) {
    const int percent =
        total == 0
            ? 100
            : static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == *last) return;
    *last = percent;
    const std::string bar(static_cast<std::size_t>(percent * kBarWidth / 100), '#');
    std::fprintf(stderr, "\r%s [%-*s] %3d %%%s", what.c_str(), kBarWidth, bar.c_str(), percent,
                 done == total ? "\n" : "");
  };
}

}  // namespace flashoptim::tools
