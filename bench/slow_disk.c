/* A disk whose every sync takes a millisecond, for files on tmpfs: LD_PRELOAD it. */
#include <time.h>

static int slow(void) {
    struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, 0);
    return 0;
}

int fsync(int file) { (void)file; return slow(); }
int fdatasync(int file) { (void)file; return slow(); }
