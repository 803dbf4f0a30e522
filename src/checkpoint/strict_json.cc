#include "checkpoint/strict_json.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "flashoptim/checkpoint.h"

namespace flashoptim::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestShownName = 200;
constexpr int kInnerDepth = 3;

// A byte of UTF-8 that begins no character.
bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

}  // namespace

std::string Quoted(std::string_view name) {
  std::string shown = "'";
  std::size_t length = std::min(name.size(), kLongestShownName);
  // Not within a character of several bytes: the rest of UTF-8 is to be UTF-8.
  while (length < name.size() && length > 0 && IsContinuation(name[length])) --length;
  for (const char character : name.substr(0, length)) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(character)));
      shown += escaped;
    } else {
      shown += character;
    }
  }
  return shown + (name.size() > kLongestShownName ? "...'" : "'");
}

json ParseObject(std::string_view text, const std::string& what, const JsonLimits& limits) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::uint64_t inner_values = 0;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= limits.depth) {
          throw FileError(what + " is nested more than " + std::to_string(limits.depth) +
                          " levels deep");
        }
        if (event == json::parse_event_t::object_start) names.emplace_back();
        inner_values = 0;
        break;
      case json::parse_event_t::object_end:
        names.pop_back();
        break;
      case json::parse_event_t::key:
        if (!names.back().insert(value.get<std::string>()).second) {
          throw FileError(what + " has the name " + Quoted(value.get<std::string>()) + " twice");
        }
        break;
      case json::parse_event_t::value:
        if (depth >= kInnerDepth && ++inner_values > limits.inner_values) {
          throw FileError(what + " has a list of more than " + std::to_string(limits.inner_values) +
                          " values");
        }
        break;
      case json::parse_event_t::array_end:
        break;
    }
    return true;
  };
  // The parser takes a NUL for the end and would ignore what stands behind it.
  if (text.find('\0') != std::string_view::npos) {
    throw FileError(what + " is not valid JSON: it holds a NUL byte");
  }
  json parsed;
  try {
    parsed = json::parse(text, check);
  } catch (const json::exception& error) {
    // The library quotes the text around the error, which may be long or no text at all.
    std::string reason = error.what();
    const std::size_t quote = reason.find("last read");
    if (quote != std::string::npos) reason.resize(quote);
    throw FileError(what + " is not valid JSON: " + Quoted(reason));
  }
  if (!parsed.is_object()) throw FileError(what + " is not a JSON object");
  return parsed;
}

}  // namespace flashoptim::checkpoint
