// Enough of CUDA to run our kernels on a CPU, one block at a time: every thread is a fiber, switched at barriers only.
// Threads and blocks run in random order, shared memory is NaN when a block begins, and what is undefined on a GPU stops the
// kernel with a message: a barrier that some threads have left, a warp operation in which lanes diverge, a deadlock, an
// access outside of all tensors, a kernel launched early in which no thread waits for the previous kernel.
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static __attribute__((section("shared_memory")))
#define __CUDA_ARCH__ 900

struct Index { unsigned x, y, z; };
struct int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static Index threadIdx, blockIdx, blockDim, gridDim;

template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }

extern "C" char __start_shared_memory[], __stop_shared_memory[];  // by the linker, of the section of that name
static __attribute__((section("shared_memory"), used)) char shared_memory_exists;

namespace emulator {
constexpr int MOST = 1024, STACK = 1 << 16;
// A fiber that waits for a generation to end is not resumed before it does.
struct Fiber { ucontext_t context; char* stack; bool done; const unsigned long* awaited; unsigned long generation; };
static Fiber fibers[MOST];
static ucontext_t scheduler;
static int current, threads, alive, arrived;
static unsigned long generation, warp_generation[MOST / 32];
static int warp_arrived[MOST / 32], warp_alive[MOST / 32], operation[MOST];
static double lane[MOST];  // holds every 32-bit value exactly
static void (*kernel)();

static char message[256];
static sigjmp_buf failed;  // leads out of the fibers
static bool waited;

[[noreturn]] static void stop(const char* why) {
    std::snprintf(message, sizeof message, "%s (thread %d of block %u, %u)", why, current, blockIdx.x, blockIdx.y);
    siglongjmp(failed, 1);
}
static void on_fault(int, siginfo_t* info, void*) { stop("an access outside of all tensors"); }
static void wait_for_previous() { waited = true; }
static void yield() {
    swapcontext(&fibers[current].context, &scheduler);
    threadIdx.x = current;
}
static void wait_past(const unsigned long* awaited, unsigned long mine) {
    fibers[current].awaited = awaited, fibers[current].generation = mine;
    while (*awaited == mine) yield();
    fibers[current].awaited = nullptr;
}
static void warp_barrier(unsigned mask) {
    const int warp = current / 32, wanted = __builtin_popcount(mask);
    if (warp_alive[warp] < wanted) stop("a warp operation with lanes that have left");
    const unsigned long mine = warp_generation[warp];
    if (++warp_arrived[warp] == wanted) warp_arrived[warp] = 0, ++warp_generation[warp];
    wait_past(&warp_generation[warp], mine);
}
// All lanes of the mask give a value, all read what they need of the others'.
template <class Read>
static auto together(unsigned mask, int which, double value, Read read) {
    const int first = current / 32 * 32;
    if (!(mask >> (current - first) & 1)) stop("a warp operation by a lane outside its mask");
    lane[current] = value, operation[current] = which;
    warp_barrier(mask);
    for (int i = 0; i < 32; ++i)
        if ((mask >> i & 1) && operation[first + i] != which) stop("a warp operation in which lanes diverge");
    const auto result = read(lane + first, current % 32);
    warp_barrier(mask);
    return result;
}
static void thread_main() {
    threadIdx.x = current;
    kernel();
    fibers[current].done = true;
    --alive, --warp_alive[current / 32];
    while (true) yield();
}
static unsigned long progress() {
    unsigned long sum = generation;
    for (unsigned long one : warp_generation) sum += one;
    return sum - alive;
}
static void run_block(const std::vector<int>& order) {
    alive = threads, arrived = 0;
    for (int warp = 0; warp < threads / 32; ++warp) warp_alive[warp] = 32, warp_arrived[warp] = 0;
    for (int i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        if (!fiber.stack) fiber.stack = static_cast<char*>(std::malloc(STACK));
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack, fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr, fiber.done = false, fiber.awaited = nullptr;
        makecontext(&fiber.context, thread_main, 0);
    }
    for (int idle = 0; alive;) {
        const unsigned long before = progress();
        for (int i : order) {
            const bool waiting = fibers[i].awaited && *fibers[i].awaited == fibers[i].generation;
            if (fibers[i].done || waiting) continue;
            current = i, threadIdx.x = i, swapcontext(&scheduler, &fibers[i].context);
        }
        idle = progress() == before ? idle + 1 : 0;
        if (idle > 4) stop("a deadlock");
    }
}
static void run_grid(unsigned width, unsigned height, int count, unsigned seed, bool early) {
    blockDim = {static_cast<unsigned>(count), 1, 1}, gridDim = {width, height, 1};
    std::mt19937 random(seed);
    std::vector<int> order(count), blocks(width * height);
    for (int i = 0; i < count; ++i) order[i] = i;
    for (unsigned i = 0; i < width * height; ++i) blocks[i] = i;
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (int block : blocks) {
        blockIdx = {block % width, block / width, 0};
        std::shuffle(order.begin(), order.end(), random);
        std::memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
        run_block(order);
    }
    if (early && !waited) stop("launched early, but no thread calls wait_for_previous");
}
// Returns what went wrong, or null.
static const char* run(unsigned width, unsigned height, int count, void (*entry)(), unsigned seed, bool early) {
    static char stack[1 << 16];  // for the handler: the fibers' own are small
    stack_t own = {}, before;
    own.ss_sp = stack, own.ss_size = sizeof stack;
    struct sigaction action = {}, segv, bus;
    action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&own, &before), sigaction(SIGSEGV, &action, &segv), sigaction(SIGBUS, &action, &bus);
    kernel = entry, threads = count, waited = false;
    const bool wrong = sigsetjmp(failed, 1);
    if (!wrong) run_grid(width, height, count, seed, early);
    sigaction(SIGSEGV, &segv, nullptr), sigaction(SIGBUS, &bus, nullptr), sigaltstack(&before, nullptr);
    return wrong ? message : nullptr;
}
}  // namespace emulator

static void __syncthreads() {
    using namespace emulator;
    if (alive != threads) stop("__syncthreads with threads that have left");
    const unsigned long mine = generation;
    if (++arrived == threads) arrived = 0, ++generation;
    wait_past(&generation, mine);
}
static void __syncwarp() { emulator::together(~0u, 0, 0, [](double*, int) { return 0; }); }
static unsigned __ballot_sync(unsigned mask, bool vote) {
    return emulator::together(mask, 1, vote, [=](double* lanes, int) {
        unsigned bits = 0;
        for (int i = 0; i < 32; ++i) bits |= (mask >> i & 1) && lanes[i] != 0 ? 1u << i : 0u;
        return bits;
    });
}
static bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
template <class T> static T __shfl_sync(unsigned mask, T value, int source) {
    return emulator::together(mask, 2, value, [=](double* lanes, int) { return static_cast<T>(lanes[source & 31]); });
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int step) {
    return emulator::together(mask, 3, value, [=](double* lanes, int mine) { return static_cast<T>(lanes[(mine ^ step) & 31]); });
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, int step) {
    return emulator::together(mask, 4, value, [=](double* lanes, int mine) { return static_cast<T>(lanes[mine >= step ? mine - step : mine]); });
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, int step) {
    return emulator::together(mask, 5, value, [=](double* lanes, int mine) { return static_cast<T>(lanes[mine + step < 32 ? mine + step : mine]); });
}
template <class T> static T __reduce_add_sync(unsigned mask, T value) {
    return emulator::together(mask, 6, value, [=](double* lanes, int) {
        double sum = 0;
        for (int i = 0; i < 32; ++i) sum += mask >> i & 1 ? lanes[i] : 0;
        if (sum != static_cast<T>(sum)) emulator::stop("a reduction that overflows");
        return static_cast<T>(sum);
    });
}
template <class T> static T __ldg(const T* from) { return *from; }
template <class T> static T __ldcs(const T* from) { return *from; }
template <class T> static T atomicAdd(T* to, T value) { const T before = *to; *to += value; return before; }
static unsigned atomicOr(unsigned* to, unsigned bits) { const unsigned before = *to; *to |= bits; return before; }
static unsigned atomicAnd(unsigned* to, unsigned bits) { const unsigned before = *to; *to &= bits; return before; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
static int __clz(unsigned bits) { return bits ? __builtin_clz(bits) : 32; }
static int __float2int_rn(float value) { return static_cast<int>(std::lrintf(value)); }
static int __float_as_int(float value) { int bits; std::memcpy(&bits, &value, 4); return bits; }
static float __fadd_rn(float a, float b) { return a + b; }
static double __dmul_rn(double a, double b) { return a * b; }
static float __int_as_float(int bits) { float value; std::memcpy(&value, &bits, 4); return value; }
