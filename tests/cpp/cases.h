// The table of cases that the conformance tests share: what is stepped, as plain data. A test of
// another backend walks the same table.
#ifndef FLASHOPTIM_TESTS_CASES_H_
#define FLASHOPTIM_TESTS_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashoptim/plan.h"
#include "flashoptim/types.h"

namespace flashoptim::testing {

/// What weights, corrections and gradients are filled with.
enum class Values : std::uint8_t {
  kOrdinary,   ///< magnitudes of training
  kNonfinite,  ///< NaN, infinities and zeros sprinkled in, and corrections that fit no weight
  kWild,       ///< every magnitude, subnormals included
};

/// A rule with its arguments and the moments that it keeps.
struct RuleCase {
  std::string name;
  Rule rule = Rule::kSgd;
  Hyperparameters hyper;
  bool first = true;
  bool second = false;
  bool maximum = false;
};

/// A weight with its correction.
struct WeightCase {
  std::string name;
  DType dtype = DType::kFloat32;
  std::int32_t correction_bits = 0;
};

/// One way of stepping a tensor.
struct StepCase {
  RuleCase rule;
  Codec codec = Codec::kNone;
  WeightCase weight;
  DType gradient_dtype = DType::kFloat32;
  Values values = Values::kOrdinary;

  std::string Name() const;
};

/// A tensor, and for how many steps it is worth following.
struct Shape {
  std::uint64_t rows = 0;
  std::uint64_t row_length = 0;
  int steps = 0;
};

/// Every rule of docs/format.md with each of its arguments.
const std::vector<RuleCase>& RuleCases();
/// Every dtype of weights with every width of correction.
const std::vector<WeightCase>& WeightCases();

/// All codecs, weights, dtypes of gradients, ways of rounding and kinds of values for one rule.
std::vector<StepCase> AllCases(const RuleCase& rule);
/// A part of them in which each value of each column occurs with each rule.
std::vector<StepCase> ThinCases();

/// Sizes 0, 1, 63, 64, 65, 200, and rows with tails.
std::vector<Shape> SmallShapes();
/// Sizes of several chunks of work: 4,095 and 2^20 elements, rows of whole groups and with tails.
std::vector<Shape> LargeShapes();

}  // namespace flashoptim::testing

#endif  // FLASHOPTIM_TESTS_CASES_H_
