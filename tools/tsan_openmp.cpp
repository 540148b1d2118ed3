// For `make sanitize`: tells ThreadSanitizer what the barriers of libgomp order, which it cannot see because libgomp is
// built without it. Loaded before libgomp, in front of the three functions that start and join threads. Compiled
// without the sanitizer: what it reads itself is not judged.
#include <dlfcn.h>

extern "C" void __tsan_acquire(void *), __tsan_release(void *);

namespace {

struct Region {
    void (*body)(void *);
    void *data;
    char started, finished;
};
thread_local Region *here = nullptr;

void run(void *argument) {
    Region *region = static_cast<Region *>(argument), *outside = here;
    __tsan_acquire(&region->started);
    here = region;
    region->body(region->data);
    here = outside;
    __tsan_release(&region->finished);
}

template <class F> F next(const char *name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

void barrier(const char *name) {
    if (here) __tsan_release(&here->finished);
    next<void (*)()>(name)();
    if (here) __tsan_acquire(&here->finished);
}

}  // namespace

extern "C" void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    Region region = {body, data, 0, 0};
    __tsan_release(&region.started);
    next<void (*)(void (*)(void *), void *, unsigned, unsigned)>("GOMP_parallel")(run, &region, threads, flags);
    __tsan_acquire(&region.finished);
}
extern "C" void GOMP_barrier() { barrier("GOMP_barrier"); }
extern "C" void GOMP_loop_end() { barrier("GOMP_loop_end"); }
