#include <memory>
#include <utility>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/translate.h"

using flashoptim::capi::CheckPointer;
using flashoptim::capi::CheckStruct;
using flashoptim::capi::Guarded;

namespace {

// What was said of the state of fewer tensors says nothing of this one.
void ForgetLayout(flashoptim_builder& builder) {
  builder.layout.clear();
  builder.memory.addresses.clear();
}

const std::vector<flashoptim::StateEntry>& LayoutOf(flashoptim_builder& builder) {
  if (builder.layout.empty()) builder.layout = flashoptim::StateLayout(builder.groups);
  return builder.layout;
}

void CheckIndex(const char* name, std::size_t index, std::size_t count) {
  if (index >= count) {
    throw std::invalid_argument(std::string(name) + " " + std::to_string(index) + " of " +
                                std::to_string(count));
  }
}

}  // namespace

flashoptim_status flashoptim_builder_create(flashoptim_builder** builder) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    *builder = std::make_unique<flashoptim_builder>().release();
  });
}

void flashoptim_builder_destroy(flashoptim_builder* builder) {
  const std::unique_ptr<flashoptim_builder> owned(builder);
}

flashoptim_status flashoptim_builder_add_group(flashoptim_builder* builder,
                                               const flashoptim_options* options, size_t* group) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    CheckStruct(options, "options");
    flashoptim::ParameterGroup added{flashoptim::capi::OptionsOf(*options), {}};
    // Refuses values and rules that do not fit while the caller still knows which they were.
    std::vector<flashoptim::ParameterGroup> heads;
    for (const auto& known : builder->groups) heads.push_back({known.options, {}});
    heads.push_back(added);
    flashoptim::StateLayout(heads);
    builder->groups.push_back(std::move(added));
    ForgetLayout(*builder);
    if (group != nullptr) *group = builder->groups.size() - 1;
  });
}

flashoptim_status flashoptim_builder_add_tensor(flashoptim_builder* builder, size_t group,
                                                const flashoptim_tensor* tensor) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    CheckStruct(tensor, "tensor");
    CheckIndex("parameter group", group, builder->groups.size());
    flashoptim::Parameter parameter = flashoptim::capi::ParameterOf(*tensor);
    const flashoptim::ParameterGroup alone{builder->groups[group].options, {parameter}};
    flashoptim::StateLayout({&alone, 1});
    builder->groups[group].parameters.push_back(std::move(parameter));
    ForgetLayout(*builder);
  });
}

flashoptim_status flashoptim_builder_state_count(flashoptim_builder* builder, size_t* count) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    CheckPointer(count, "count");
    *count = LayoutOf(*builder).size();
  });
}

flashoptim_status flashoptim_builder_state(flashoptim_builder* builder, size_t index,
                                           flashoptim_state_tensor* tensor) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    CheckStruct(tensor, "tensor");
    const auto& layout = LayoutOf(*builder);
    CheckIndex("state tensor", index, layout.size());
    flashoptim::capi::Fill(layout[index], *tensor);
  });
}

flashoptim_status flashoptim_builder_set_state_memory(flashoptim_builder* builder, size_t index,
                                                      void* data) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    const std::size_t count = LayoutOf(*builder).size();
    CheckIndex("state tensor", index, count);
    builder->memory.addresses.resize(count);
    builder->memory.addresses[index] = data;
  });
}

flashoptim_status flashoptim_builder_keep_state(flashoptim_builder* builder, int32_t keep) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    if (keep != 0 && keep != 1) {
      throw std::invalid_argument("keep must be 0 or 1, not " + std::to_string(keep));
    }
    builder->memory.holds_state = keep == 1;
  });
}

flashoptim_status flashoptim_optimizer_create(flashoptim_builder* builder,
                                              flashoptim_optimizer** optimizer) {
  return Guarded([&] {
    CheckPointer(builder, "builder");
    CheckPointer(optimizer, "optimizer");
    flashoptim::Optimizer made(builder->groups, builder->memory);
    *optimizer =
        std::make_unique<flashoptim_optimizer>(flashoptim_optimizer{std::move(made)}).release();
  });
}
