// The CUDA operators, kernels and launches, as CPU operators named attention_ext_emulated::…, on the emulated device of
// cuda_emulation.h. Compiled with -Dattention_ext=attention_ext_emulated.
#include "../../attention_ext/operators.cu"
#include "../../attention_ext/schema.cpp"
