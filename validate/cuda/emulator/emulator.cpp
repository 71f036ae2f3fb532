// Blocks of threads on a processor. Each thread of a block is a fiber, which runs
// until it waits for others at a barrier; the block is a round over all fibers
// until they have returned. A block that cannot go on ends the process: on a card
// it would hang, or compute what it likes.
#include "emulator.h"

#include "launch.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas(16) thread_local char memory[emulator::kSharedMost]; // what a launch asked for

namespace emulator {
namespace {

const size_t kStack = 128 << 10; // bytes of a fiber's stack, of which the last page faults

struct Barrier {
  int members = 0, arrived = 0;
  unsigned long turn = 0;

  void let_go() {
    arrived = 0;
    turn++;
  }
  void leave() {
    if (--members && arrived == members) let_go();
  }
};

struct Warp {
  Barrier barrier;
  unsigned alive = 0;
  uint64_t slots[2][32] = {}; // by turns: a lane may put in before others have read
};

struct Fiber {
  ucontext_t start;
  jmp_buf at;
  uint3 id;
  unsigned lane = 0, shuffles = 0;
  Warp* warp = nullptr;
  const Barrier* barrier = nullptr; // that it waits at
  unsigned long turn = 0;
  bool started = false, returned = false;

  bool waits() const { return barrier && barrier->turn == turn; }
};

std::vector<Fiber*> fibers; // kept from launch to launch
std::vector<Warp> warps;
Barrier block;
Fiber* current;
jmp_buf home;
void (*call)(void*, const void*);
void* kernel;
const void* arguments;

void suspend() {
  if (!_setjmp(current->at)) _longjmp(home, 1);
}

// life runs the thread of one block after another.
void life() {
  for (;;) {
    call(kernel, arguments);
    current->returned = true;
    current->warp->alive &= ~(1u << current->lane);
    current->warp->barrier.leave();
    block.leave();
    suspend();
  }
}

void resume(Fiber* f) {
  current = f;
  threadIdx = f->id;
  if (_setjmp(home)) return;
  if (f->started) _longjmp(f->at, 1);
  f->started = true;
  setcontext(&f->start);
}

Fiber* make_fiber() {
  Fiber* f = new Fiber;
  char* stack = (char*)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE) || getcontext(&f->start)) {
    perror("emulator: a fiber's stack");
    abort();
  }
  f->start.uc_stack.ss_sp = stack;
  f->start.uc_stack.ss_size = kStack;
  f->start.uc_link = nullptr;
  makecontext(&f->start, life, 0);
  return f;
}

// begin readies the fibers for a block of so many threads.
void begin(unsigned threads) {
  block.members = (int)threads;
  block.arrived = 0;
  warps.assign((threads + 31) / 32, Warp());
  for (unsigned i = 0; i < threads; i++) {
    Fiber* f = fibers[i];
    f->id = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    f->lane = i % 32;
    f->shuffles = 0;
    f->warp = &warps[i / 32];
    f->warp->barrier.members++;
    f->warp->alive |= 1u << f->lane;
    f->barrier = nullptr;
    f->returned = false;
  }
}

// run_warp runs the threads of a warp until all that have not returned wait for
// others of the block. It reports whether there were any to run.
bool run_warp(unsigned from, unsigned to) {
  for (bool any = false;; any = true) {
    bool moved = false;
    for (unsigned i = from; i < to; i++) {
      Fiber* f = fibers[i];
      if (f->returned || f->waits()) continue;
      resume(f);
      moved = true;
    }
    if (!moved) return any;
  }
}

void run_block(const char* name, unsigned threads) {
  begin(threads);
  while (block.members) {
    bool moved = false;
    for (unsigned i = 0; i < threads; i += 32) moved |= run_warp(i, std::min(i + 32, threads));
    if (!moved) {
      fprintf(stderr, "emulator: kernel %s: the threads of block (%u, %u, %u) wait for one another at different barriers\n", name, blockIdx.x, blockIdx.y, blockIdx.z);
      abort();
    }
  }
}

void wait(Barrier& b) {
  if (++b.arrived == b.members) return b.let_go();
  current->barrier = &b;
  current->turn = b.turn;
  suspend();
}

// A struct of N bytes by value lies on the stack, whatever its fields, so this
// passes any up to N bytes (System V ABI, AMD64, 3.2.3: above two eightbytes).
template <size_t N> struct Bytes {
  char bytes[N];
};
template <size_t N> void pass(void* f, const void* p) { ((void (*)(Bytes<N>))f)(*(const Bytes<N>*)p); }

}  // namespace

void wait_for_block() { wait(block); }
void wait_for_warp() { wait(current->warp->barrier); }
unsigned lane() { return current->lane; }
unsigned alive() { return current->warp->alive; }

const uint64_t* gather(uint64_t value) {
  uint64_t* slots = current->warp->slots[current->shuffles++ % 2];
  slots[current->lane] = value;
  wait_for_warp();
  return slots;
}

void launch(const char* name, void* f, dim3 grid, dim3 threads, unsigned shared, const void* args, size_t bytes) {
#ifndef __x86_64__
#error "arguments are passed as on x86-64"
#endif
  static char buffer[kArgumentsMost];
  memcpy(buffer, args, bytes);
  call = bytes <= 64 ? pass<64> : bytes <= 256 ? pass<256> : bytes <= 1024 ? pass<1024> : pass<kArgumentsMost>;
  kernel = f;
  arguments = buffer;
  gridDim = grid;
  blockDim = threads;
  unsigned count = threads.x * threads.y * threads.z;
  while (fibers.size() < count) fibers.push_back(make_fiber());
  for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
        memset(memory, 0xff, shared); // NaNs
        run_block(name, count);
      }
}
}  // namespace emulator
