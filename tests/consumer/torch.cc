// A step of the adapter, compiled against the LibTorch of this project.
#include <ATen/Functions.h>
#include <flashoptim/torch_adapter.h>

int main() {
  at::Tensor weight = at::ones({4, 64}, at::kBFloat16).requires_grad_(true);
  weight.mutable_grad() = at::ones_like(weight);
  flashoptim::FlashAdamW optimizer({weight}, flashoptim::FlashAdamWOptions(0.25));
  optimizer.step();
  return weight.detach().lt(1.0).all().item<bool>() && !optimizer.state().empty() ? 0 : 1;
}
