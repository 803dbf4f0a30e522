// Reads the golden vectors of tests/golden/. A column is one string of hexadecimal words of equal
// width, most significant digit first.
#ifndef FLASHOPTIM_TESTS_GOLDEN_H_
#define FLASHOPTIM_TESTS_GOLDEN_H_

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "flashoptim/plan.h"

namespace flashoptim::testing {

/// The content of tests/golden/NAME.json. Throws if it cannot be read.
nlohmann::json LoadGolden(const std::string& name);

/// The words of a column, `digits` hexadecimal digits each.
std::vector<std::uint32_t> Words(const nlohmann::json& column, unsigned digits);

/// One number of any width up to 64 bits.
std::uint64_t Number(const nlohmann::json& word);

/// The rule and the arguments of a "hyper" entry.
Rule RuleOf(const nlohmann::json& hyper);
Hyperparameters HyperparametersOf(const nlohmann::json& hyper);

/// Floats of a column of images.
std::vector<float> Floats(const nlohmann::json& column);

}  // namespace flashoptim::testing

#endif  // FLASHOPTIM_TESTS_GOLDEN_H_
