// A CUDA device emulated on the CPU: one block at a time, each thread a fiber.
//
// g++ compiles the kernels' source against this. A fiber runs until it reaches a barrier. The order of the fibers can
// be changed, so that a missing barrier changes the result, and shared memory is filled with NaN before each block.
// Not covered: speed, the launch itself, the memory model beyond barriers, and whether the tensor-core layout agrees
// with the hardware rather than only with our reading of the PTX manual.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <ucontext.h>

#define __global__ static
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One section, whose start and end the linker provides.
#define __shared__ static __attribute__((section("emulated_shared")))

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

static dim3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" char __start_emulated_shared[], __stop_emulated_shared[];

namespace emulation {

enum class Wait { none, warp, block, ended };

struct Fiber {
  jmp_buf place;
  Wait wait;
  bool started;
  unsigned exchanges;
  std::vector<char> stack;
};

constexpr int warp = 32;
static int order = 0;  // order of fibers: 0 ascending, 1 descending, else the seed of a shuffle
static std::vector<Fiber> fibers;
static int current;
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static std::function<void()> body;

static void give_turn(Wait wait) {
  fibers[current].wait = wait;
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

static void start_fiber() {
  body();
  fibers[current].wait = Wait::ended;
  _longjmp(scheduler, 1);
}

static void resume(int i) {
  current = i;
  threadIdx = dim3(static_cast<unsigned>(i));
  Fiber& fiber = fibers[i];
  fiber.wait = Wait::none;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = fiber.stack.size();
  context.uc_link = nullptr;
  makecontext(&context, start_fiber, 0);
  swapcontext(&scheduler_context, &context);
}

// Resume threads at a barrier that all running threads of their warp, or block, have reached.
static bool release(int count) {
  bool any = false;
  bool all_at_block = true;
  for (int i = 0; i < count; ++i) all_at_block &= fibers[i].wait == Wait::block || fibers[i].wait == Wait::ended;
  for (int i = 0; i < count; ++i)
    if (all_at_block && fibers[i].wait == Wait::block) fibers[i].wait = Wait::none, any = true;
  for (int start = 0; start < count; start += warp) {
    bool all = true;
    for (int i = start; i < start + warp; ++i) all &= fibers[i].wait == Wait::warp;
    for (int i = start; all && i < start + warp; ++i) fibers[i].wait = Wait::none, any = true;
  }
  return any;
}

static void run_block(int count, const std::vector<int>& turns) {
  memset(__start_emulated_shared, 0xff, __stop_emulated_shared - __start_emulated_shared);
  for (int i = 0; i < count; ++i) fibers[i].wait = Wait::none, fibers[i].started = false, fibers[i].exchanges = 0;
  do {
    for (int i : turns)
      if (fibers[i].wait == Wait::none) resume(i);
  } while (release(count));
  for (int i = 0; i < count; ++i)
    if (fibers[i].wait != Wait::ended) {
      fprintf(
          stderr, "thread %d of block %u, %u, %u waits at a barrier that others never reach\n", i, blockIdx.x,
          blockIdx.y, blockIdx.z);
      abort();
    }
}

static void run(dim3 grid, int count, std::function<void()> kernel) {
  if (fibers.empty()) fibers.resize(count);
  for (Fiber& fiber : fibers) fiber.stack.resize(64 * 1024);
  body = std::move(kernel);
  gridDim = grid;
  blockDim = dim3(static_cast<unsigned>(count));
  std::vector<int> turns(count);
  for (int i = 0; i < count; ++i) turns[i] = order == 1 ? count - 1 - i : i;
  uint32_t random = static_cast<uint32_t>(order);
  for (int i = count - 1; order > 1 && i > 0; --i) {
    random = random * 1664525u + 1013904223u;
    std::swap(turns[i], turns[random % (i + 1)]);
  }
  const int64_t blocks = static_cast<int64_t>(grid.x) * grid.y * grid.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = order == 0 ? i : blocks - 1 - i;
    blockIdx = dim3(block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
    run_block(count, turns);
  }
}

}  // namespace emulation

extern "C" __attribute__((visibility("default"))) void emulation_order(int order) { emulation::order = order; }

static inline void __syncthreads() { emulation::give_turn(emulation::Wait::block); }

template <class T>
static inline T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

static inline unsigned atomicOr(unsigned* to, unsigned value) {
  const unsigned before = *to;
  *to |= value;
  return before;
}

template <class T>
static inline T atomicCAS(T* at, T expected, T value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}

template <class T>
static inline T atomicMax(T* to, T value) {
  const T before = *to;
  if (value > before) *to = value;
  return before;
}

static inline long long __double_as_longlong(double x) {
  long long bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static inline double __longlong_as_double(long long bits) {
  double x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }

static inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// mma.sync.m16n8k8 in TF32. With two alternating slots, one barrier between writing and reading is enough.
static inline void tensor_product(float* c, const float* a, const float* b) {
  static float a_of[2][32][32][4], b_of[2][32][32][2];
  emulation::Fiber& self = emulation::fibers[emulation::current];
  const int slot = self.exchanges++ % 2, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 6; ++i)
    if (__float_as_uint(i < 4 ? a[i] : b[i - 4]) & 0x1fff) fprintf(stderr, "not a TF32 number\n"), abort();
  memcpy(a_of[slot][warp][lane], a, 4 * sizeof(float));
  memcpy(b_of[slot][warp][lane], b, 2 * sizeof(float));
  emulation::give_turn(emulation::Wait::warp);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 8; ++k)  // A: row g or g + 8, column t or t + 4; B: row t or t + 4, column g
      c[i] += a_of[slot][warp][row % 8 * 4 + k % 4][row / 8 + k / 4 * 2] * b_of[slot][warp][column * 4 + k % 4][k / 4];
  }
}
