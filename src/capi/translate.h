// Between the structs of C and those of C++. Wrong codes are std::invalid_argument.
#ifndef FLASHOPTIM_CAPI_TRANSLATE_H_
#define FLASHOPTIM_CAPI_TRANSLATE_H_

#include "flashoptim/checkpoint.h"
#include "flashoptim/flashoptim.h"
#include "flashoptim/optimizer.h"

namespace flashoptim::capi {

DType DTypeOf(std::int32_t code);
Options OptionsOf(const flashoptim_options& options);
Options DefaultsOf(std::int32_t optimizer);
Parameter ParameterOf(const flashoptim_tensor& tensor);
WriteOptions WriteOptionsOf(const flashoptim_save_options& options);

/// Fills all members but the size.
void Fill(const Options& options, flashoptim_options& target);
void Fill(const Parameter& parameter, flashoptim_tensor& target);
void Fill(const StateEntry& tensor, flashoptim_state_tensor& target);
void Fill(const MemoryUse& use, flashoptim_memory& target);

}  // namespace flashoptim::capi

#endif  // FLASHOPTIM_CAPI_TRANSLATE_H_
