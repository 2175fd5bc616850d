// Keeps every library loaded until the process ends; linked into every binary of an address-sanitizer build.
//
// The search for leaks comes last. What only an unloaded library refers to, such as a Vulkan driver's tables, would be
// reported then, without the library's name.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) int dlclose(void*) noexcept { return 0; }
