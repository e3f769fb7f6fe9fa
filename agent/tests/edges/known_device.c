/* A disk that serves four requests at a time. A read takes 2 ms, and 2 ms more for each 64 KiB; a
 * write twice as long. For nbdkit's cc plugin. */
#include <stdint.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static void *known_open(int readonly)
{
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t known_get_size(void *handle)
{
    return INT64_C(256) << 20;
}

static int serve(uint64_t microseconds)
{
    return nbdkit_nanosleep(microseconds / 1000000, microseconds % 1000000 * 1000);
}

static int known_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
    memset(buf, 1, count);
    return serve(2000 + UINT64_C(2000) * count / 65536);
}

static int known_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset,
                        uint32_t flags)
{
    return serve(2 * (2000 + UINT64_C(2000) * count / 65536));
}

static struct nbdkit_plugin plugin = {
    .name = "known",
    .open = known_open,
    .get_size = known_get_size,
    .pread = known_pread,
    .pwrite = known_pwrite,
};

NBDKIT_REGISTER_PLUGIN(plugin)
