// The operator that selects the instruction set of the CPU kernels.
#include "../common.h"
#include "kernels.h"

namespace attention_ext {
namespace {

std::string choose(const std::string& name) {
  const char* chosen = choose_instruction_set(name.c_str());
  require(
      chosen,
      "instruction set '" + name + "' is not supported: expected one of generic, avx2, avx512 that this machine has");
  return chosen;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CompositeExplicitAutograd, library) {
  library.impl("choose_instruction_set", TORCH_BOX(&choose));
}

}  // namespace attention_ext
