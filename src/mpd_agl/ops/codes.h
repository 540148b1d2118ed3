// What every entry point returns, and the door through which tests make allocations fail.
#pragma once

enum { DONE = 0, NO_MEMORY = 1 };

// Whether the next block may be allocated: always, unless mpd_agl_fail_after(n) was called (dispatch.cpp).
extern "C" bool mpd_agl_may_allocate();
