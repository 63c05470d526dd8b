// The operators that select and name the instruction set of the CPU kernels.
#include "../common.h"
#include "kernels.h"

namespace attention_ext {
namespace {

std::string choose(const std::string& name) {
  const char* chosen = choose_instruction_set(name.c_str());
  require(
      chosen, "instruction set '" + name +
                  "' is not supported: expected one of generic, avx2, avx512, avx512_bf16, amx that this machine has");
  return chosen;
}

std::string chosen() { return instruction_set().name; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CompositeExplicitAutograd, library) {
  library.impl("choose_instruction_set", TORCH_BOX(&choose));
  library.impl("instruction_set", TORCH_BOX(&chosen));
}

}  // namespace attention_ext
