// Consecutive phases of tasks in one parallel region, for phases too short for a region each.
//
// A thread waits only for tasks that another thread has started, never for a thread to arrive, so that any number of
// threads, even one, completes all tasks. A late thread joins the current phase.
#pragma once

#include <atomic>
#include <thread>

#include "../common.h"

namespace attention_ext {

class Phases {
 public:
  // A phase has at most `most_tasks` tasks. Each thread prefers the same tasks in every phase, whose data its cache
  // still holds.
  Phases(int64_t threads, int64_t most_tasks) : threads_(threads), last_phases_(most_tasks) {}

  // next() returns the number of tasks of the next phase, 0 after the last; no task runs meanwhile. Then task(i) runs
  // for each of them.
  template <class Next, class Task>
  void run(const Next& next, const Task& task) {
    start(1, next());
    parallel(threads_, [&](int64_t thread) { work(thread, next, task); });
  }

 private:
  struct alignas(64) Last {
    std::atomic<int64_t> phase{0};
  };

  void start(int64_t phase, int64_t tasks) {
    open_.store(tasks, std::memory_order_relaxed);
    state_.store(phase * most + tasks, std::memory_order_release);
  }

  template <class Next, class Task>
  void work(int64_t thread, const Next& next, const Task& task) {
    for (int64_t state; (state = state_.load(std::memory_order_acquire)) % most;) {
      const int64_t phase = state / most, tasks = state % most;
      for (int64_t i = 0, mine = thread * tasks / threads_; i < tasks; ++i, mine = (mine + 1) % tasks)
        if (take(mine, phase)) {
          task(mine);
          if (open_.fetch_sub(1, std::memory_order_acq_rel) == 1) start(phase + 1, next());
        }
      wait(state);
    }
  }

  // Claim a task of this phase; false if another thread has it.
  bool take(int64_t task, int64_t phase) {
    std::atomic<int64_t>& last = last_phases_[task].phase;
    int64_t before = last.load(std::memory_order_relaxed);
    return before < phase && last.compare_exchange_strong(before, phase, std::memory_order_relaxed);
  }

  void wait(int64_t state) const {
    for (int64_t turn = 0; state_.load(std::memory_order_acquire) == state; ++turn)
      if (turn < 4096)  // about ten microseconds
        pause();
      else
        std::this_thread::yield();  // more threads than cores
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  static constexpr int64_t most = int64_t{1} << 24;  // upper limit on the tasks of a phase
  const int64_t threads_;
  std::vector<Last> last_phases_;              // last phase in which each task was claimed
  alignas(64) std::atomic<int64_t> state_{0};  // phase · most + number of its tasks
  alignas(64) std::atomic<int64_t> open_{0};   // unfinished tasks of the phase
};

}  // namespace attention_ext
