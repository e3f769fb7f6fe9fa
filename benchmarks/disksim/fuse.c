/*
 * disksim-fuse FILE params=FILE [NAME=VALUE...]: a simulated device as a file.
 *
 * FILE is mounted over; a loop device with direct I/O over it is a block device of this kernel.
 * The device's clock answers all requests, however many are under way: none has a thread.
 * No data is kept: reads return a pattern.
 */
#define FUSE_USE_VERSION 312

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

enum { UNDER_WAY = 4096 }; /* requests; FUSE's default is 12 */

static char *pattern;
static size_t pattern_size;

static void answer(struct request *request)
{
    fuse_req_t fuse = request->owner;

    if (request->op == OP_READ)
        fuse_reply_buf(fuse, pattern, request->length);
    else if (request->op == OP_WRITE)
        fuse_reply_write(fuse, request->length);
    else
        fuse_reply_err(fuse, 0);
    free(request);
}

static void submit(fuse_req_t fuse, enum op op, off_t offset, size_t length)
{
    struct request *request = must(calloc(1, sizeof *request));
    uint64_t at = (uint64_t)offset, end = device_size();

    if (op != OP_FLUSH && at >= end)
        length = 0;
    else if (op != OP_FLUSH && length > end - at)
        length = end - at;
    if (op != OP_FLUSH && length == 0) {
        free(request);
        if (op == OP_READ)
            fuse_reply_buf(fuse, NULL, 0);
        else
            fuse_reply_err(fuse, ENOSPC);
        return;
    }
    *request = (struct request){ .op = op, .offset = at, .length = length, .owner = fuse };
    device_submit(request);
}

static void on_init(void *unused, struct fuse_conn_info *connection)
{
    (void)unused;
    connection->max_background = connection->congestion_threshold = UNDER_WAY;
}

static void on_getattr(fuse_req_t fuse, fuse_ino_t inode, struct fuse_file_info *file)
{
    struct stat stat = { .st_ino = inode, .st_mode = S_IFREG | 0600, .st_nlink = 1 };

    (void)file;
    stat.st_uid = getuid();
    stat.st_gid = getgid();
    stat.st_size = (off_t)device_size();
    fuse_reply_attr(fuse, &stat, 3600);
}

static void on_open(fuse_req_t fuse, fuse_ino_t inode, struct fuse_file_info *file)
{
    (void)inode;
    fuse_reply_open(fuse, file);
}

static void on_read(fuse_req_t fuse, fuse_ino_t inode, size_t size, off_t offset,
                    struct fuse_file_info *file)
{
    (void)inode;
    (void)file;
    if (size > pattern_size)
        fuse_reply_err(fuse, EINVAL);
    else
        submit(fuse, OP_READ, offset, size);
}

static void on_write(fuse_req_t fuse, fuse_ino_t inode, const char *data, size_t size,
                     off_t offset, struct fuse_file_info *file)
{
    (void)inode;
    (void)data;
    (void)file;
    submit(fuse, OP_WRITE, offset, size);
}

static void on_fsync(fuse_req_t fuse, fuse_ino_t inode, int datasync, struct fuse_file_info *file)
{
    (void)inode;
    (void)datasync;
    (void)file;
    submit(fuse, OP_FLUSH, 0, 0);
}

/* A loop device discards by punching holes. */
static void on_fallocate(fuse_req_t fuse, fuse_ino_t inode, int mode, off_t offset, off_t length,
                         struct fuse_file_info *file)
{
    (void)inode;
    (void)file;
    if (device_discards() && mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
        submit(fuse, OP_DISCARD, offset, (size_t)length);
    else
        fuse_reply_err(fuse, EOPNOTSUPP);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .getattr = on_getattr,
    .open = on_open,
    .read = on_read,
    .write = on_write,
    .fsync = on_fsync,
    .fallocate = on_fallocate,
};

static int failed(const char *error)
{
    if (error)
        fprintf(stderr, "disksim-fuse: %s\n", error);
    return error ? 1 : 0;
}

int main(int argc, char **argv)
{
    char *words[] = { argv[0], "-o", "fsname=disksim,default_permissions" };
    struct fuse_args arguments = FUSE_ARGS_INIT(3, words);
    const char *error = argc < 2 ? "a file to mount over is needed" : NULL;

    for (int i = 2; !error && i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value)
            *value++ = '\0';
        error = value ? device_option(argv[i], value) : "an option is name=value";
    }
    if (failed(error) || failed(device_check()))
        return 2;
    pattern_size = 4 << 20;
    pattern = must(malloc(pattern_size));
    memset(pattern, 0xd1, pattern_size); /* QEMU takes zeroes for holes */

    struct fuse_session *session =
        fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_set_signal_handlers(session) != 0)
        return failed("FUSE refuses");
    if (fuse_session_mount(session, argv[1]) != 0)
        return failed("the mount fails");
    int status = failed(device_start(answer));
    if (!status && fuse_session_loop(session) < 0)
        status = failed("reading requests fails");
    fuse_session_unmount(session);
    device_stop();
    fuse_remove_signal_handlers(session);
    fuse_session_destroy(session);
    fuse_opt_free_args(&arguments);
    free(pattern);
    return status;
}
