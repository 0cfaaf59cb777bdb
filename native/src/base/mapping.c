/* SPDX-License-Identifier: MIT */
/*
 * Store files are regular files on tmpfs. All of their memory is allocated when they are made; in traces, that of the
 * data when a program first writes.
 *
 * The guard. A user who may write to a store file may also truncate it, and then every access to its mapping raises
 * SIGBUS. The file server, which maps files of other users, must survive that. Its SIGBUS handler, guard_handler(),
 * looks for the address among the mappings made here, and maps zero pages over that mapping. A control page full of
 * zeros has no valid geometry, so the functions that check it report the buffer as damaged. The table of mappings has a
 * fixed size and is never moved, because the handler reads it while other threads change it. A slot is in use while its
 * `base` is not NULL. Slots that are free again are in a list, so that adding and removing does not depend on how many
 * mappings there are.
 */
#define _GNU_SOURCE
#include "base/mapping.h"

#include "base/immutable.h"
#include "base/libc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* OPEN_TRIES: the most tries to open a file whose server dies meanwhile. VIEW_FLAGS: few pages of a view will be stored to, so no
 * memory is set aside for copies of all. */
enum { GUARD_SLOTS = 65536, OPEN_TRIES = 8, VIEW_FLAGS = MAP_PRIVATE | MAP_NORESERVE };

struct guard_slot {
	unsigned char *base; /* stored last, cleared first */
	uint64_t bytes;
	uint32_t next; /* of a free slot: number + 1 of the next one in the list; 0: it is the last */
};

static struct guard_slot *guard_slots;                          /* NULL before relay_guard_install() */
static uint32_t guard_free;                                     /* number + 1 of the first one in the list; 0: none */
static uint32_t guard_used;                                     /* slots from this one on were never in use */
static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER; /* for changes of the slots */
static struct sigaction guard_previous;

int relay_mapping_own(int fd, mode_t mode, uid_t uid, gid_t gid)
{
	if ((uid != geteuid() || gid != getegid()) && fchown(fd, uid, gid))
		return -errno;
	return fchmod(fd, mode) ? -errno : 0;
}

/* Checked before, because to exceed RLIMIT_FSIZE raises SIGXFSZ, which kills the process. */
static int check_limit(uint64_t bytes)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_FSIZE, &limit))
		return -errno;
	return limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur ? -EFBIG : 0;
}

/* Make a new file `bytes` long, and allocate its memory from offset `from` on. */
static int allocate(int fd, uint64_t from, uint64_t bytes)
{
	int err = check_limit(bytes);
	if (err)
		return err;
	err = posix_fallocate(fd, (off_t)from, (off_t)(bytes - from));
	return err == EFBIG ? -ENOSPC : -err;
}

int relay_mapping_populate(unsigned char *at, uint64_t bytes)
{
	while (madvise(at, bytes, MADV_POPULATE_WRITE))
		if (errno != EINTR)
			return errno == EFAULT || errno == ENOMEM ? -ENOSPC : -errno;
	return 0;
}

/* Linux refuses fallocate(2) for an immutable file, but not stores to its mapping. */
static int fill_immutable(int fd, uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	int err = relay_mapping_populate(at, bytes);
	munmap(at, bytes);
	return err;
}

int relay_mapping_fill(int fd, uint64_t bytes)
{
	struct stat st;
	if (fstat(fd, &st))
		return -errno;
	/* A shorter file would grow, to which RLIMIT_FSIZE applies, and this process might be killed by SIGXFSZ. */
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < bytes)
		return -EINVAL;
	/* fallocate(2) is called because posix_fallocate(3) writes to the file if the file system has no
	 * fallocate(2), and RLIMIT_FSIZE applies to writes. */
	while (fallocate(fd, 0, 0, (off_t)bytes))
		if (errno != EINTR)
			return errno == EPERM ? fill_immutable(fd, bytes) : -errno;
	return 0;
}

int relay_mapping_punch(int fd, uint64_t bytes)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) ? -errno : 0;
}

int relay_mapping_create(int dir_fd, const char *name, uint64_t bytes, mode_t mode, uid_t uid, gid_t gid)
{
	return relay_mapping_create_sparse(dir_fd, name, 0, bytes, mode, uid, gid);
}

int relay_mapping_create_sparse(int dir_fd, const char *name, uint64_t hole_bytes, uint64_t bytes, mode_t mode,
                                uid_t uid, gid_t gid)
{
	int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_NEW);
	if (fd < 0)
		return -errno;
	int err = allocate(fd, hole_bytes, bytes);
	if (!err)
		err = relay_mapping_own(fd, mode, uid, gid);
	if (!err)
		return fd;
	unlinkat(dir_fd, name, 0);
	close(fd);
	return err;
}

int relay_mapping_create_unnamed(const char *dir, uint64_t bytes)
{
	int fd = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, RELAY_PERM_NEW);
	int err = fd < 0 ? -errno : allocate(fd, 0, bytes);
	if (!err)
		return fd;
	if (fd >= 0)
		close(fd);
	return err;
}

static void guard_add(struct relay_mapping *mapping)
{
	pthread_mutex_lock(&guard_mutex);
	if (guard_slots && (guard_free || guard_used < GUARD_SLOTS)) {
		mapping->guard = guard_free ? guard_free : ++guard_used;
		struct guard_slot *slot = &guard_slots[mapping->guard - 1];
		guard_free = slot->next;
		slot->next = 0;
		slot->bytes = mapping->bytes;
		/* Pairs with the acquire in guard_handler(): bytes before base. */
		__atomic_store_n(&slot->base, mapping->base, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&guard_mutex);
}

static void guard_remove(const struct relay_mapping *mapping)
{
	if (!mapping->guard)
		return;
	pthread_mutex_lock(&guard_mutex);
	struct guard_slot *slot = &guard_slots[mapping->guard - 1];
	/* Pairs with the acquire in guard_handler(), which then ignores the slot. */
	__atomic_store_n(&slot->base, NULL, __ATOMIC_RELEASE);
	slot->next = guard_free;
	guard_free = mapping->guard;
	pthread_mutex_unlock(&guard_mutex);
}

static void guard_handler(int signal, siginfo_t *info, void *context)
{
	unsigned char *address = info->si_addr;
	for (size_t i = 0; i < GUARD_SLOTS; i++) {
		/* Pairs with the release in guard_add(). */
		unsigned char *base = __atomic_load_n(&guard_slots[i].base, __ATOMIC_ACQUIRE);
		if (!base || address < base || address >= base + guard_slots[i].bytes)
			continue;
		/* MAP_NORESERVE: a sparse file may be longer than the memory of the machine, which Linux would refuse. */
		if (mmap(base, guard_slots[i].bytes, PROT_READ | PROT_WRITE,
		         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED)
			return;
		break;
	}
	if (guard_previous.sa_flags & SA_SIGINFO) {
		guard_previous.sa_sigaction(signal, info, context);
	} else if (guard_previous.sa_handler != SIG_IGN && guard_previous.sa_handler != SIG_DFL) {
		guard_previous.sa_handler(signal);
	} else {
		/* Return to the instruction that faulted: it faults again, and the default action kills the process. */
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
	}
}

int relay_guard_install(void)
{
	int err = 0;
	pthread_mutex_lock(&guard_mutex);
	if (!guard_slots) {
		struct sigaction action = {.sa_sigaction = guard_handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
		guard_slots = calloc(GUARD_SLOTS, sizeof(*guard_slots));
		err = !guard_slots ? -ENOMEM : sigaction(SIGBUS, &action, &guard_previous) ? -errno : 0;
		if (err) {
			/* Without a handler, so that the next call tries again. */
			free(guard_slots);
			guard_slots = NULL;
		}
	}
	pthread_mutex_unlock(&guard_mutex);
	return err;
}

/* Another user may have put a FIFO or device at `path`, and opening that could block or have effects. Therefore it is
 * first opened with O_PATH, which does neither, and after the checks opened for use through /proc/self/fd, so that it
 * is the same file. */
static int open_checked(const char *path, int flags, bool in_mount)
{
	struct stat st;
	struct statfs fs;
	char checked_path[64];
	int checked = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
	if (checked < 0)
		return -errno;
	int fd = fstat(checked, &st) || fstatfs(checked, &fs) ? -errno : 0;
	if (!fd && (!S_ISREG(st.st_mode) || (in_mount && fs.f_type != FUSE_SUPER_MAGIC)))
		fd = -EBADMSG;
	snprintf(checked_path, sizeof(checked_path), "/proc/self/fd/%d", checked);
	if (!fd && (fd = open(checked_path, flags | O_CLOEXEC | O_NONBLOCK)) < 0)
		fd = -errno;
	if (fd == -EPERM && !in_mount)
		fd = relay_file_openat(AT_FDCWD, path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	/* /proc is not mounted. */
	if (fd == -ENOENT && (fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) < 0)
		fd = -errno;
	close(checked);
	return fd;
}

int relay_mapping_open(const char *path, int flags, bool in_mount)
{
	int fd = -ESTALE;
	/* ESTALE: the server has died in between, and the next one knows the file only by its name. */
	for (int tries = 0; tries < OPEN_TRIES && fd == -ESTALE; tries++)
		fd = open_checked(path, flags, in_mount);
	return fd;
}

int relay_mount_file_open(const char *path, int flags)
{
	return relay_mapping_open(path, flags, true);
}

int relay_backing_file(const char *path, char backing[PATH_MAX])
{
	ssize_t got = getxattr(path, "user.relayfs.backing", backing, PATH_MAX - 1);
	if (got <= 0)
		return got ? -errno : -ENODATA;
	backing[got] = 0;
	return 0;
}

int relay_mapping_open_backing(const char *mem_path)
{
	char path[PATH_MAX];
	int err = relay_backing_file(mem_path, path);
	if (err)
		return err == -ENODATA ? -ENODEV : err;
	int fd = relay_mapping_open(path, O_RDWR, false);
	return fd == -EACCES || fd == -EPERM || fd == -ENOENT ? -ENODEV : fd;
}

/* Map the first `bytes` bytes of fd, which stays the caller's. */
static int map_pages(struct relay_mapping *mapping, int fd, uint64_t bytes, int protection, int flags)
{
	void *base = mmap(NULL, bytes, protection, flags, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	*mapping = (struct relay_mapping){.base = base, .bytes = bytes, .file = RELAY_NO_DESCRIPTOR};
	guard_add(mapping);
	return 0;
}

/* Let fd belong to `mapping`, unless an error has prevented that it was mapped. Returns the error. */
static int keep_descriptor(int err, struct relay_mapping *mapping, int fd)
{
	if (!err)
		mapping->file = relay_descriptor_keep(fd);
	return err;
}

static int map_whole(struct relay_mapping *mapping, int fd, int flags)
{
	struct stat st;
	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size % RELAY_PAGE_BYTES)
		return -EBADMSG;
	return map_pages(mapping, fd, (uint64_t)st.st_size, PROT_READ | PROT_WRITE, flags);
}

int relay_mapping_map(struct relay_mapping *mapping, int fd)
{
	return keep_descriptor(map_whole(mapping, fd, MAP_SHARED), mapping, fd);
}

int relay_mapping_map_view(struct relay_mapping *mapping, int fd)
{
	return keep_descriptor(map_whole(mapping, fd, VIEW_FLAGS), mapping, fd);
}

int relay_mapping_map_glance(struct relay_mapping *mapping, int fd)
{
	int err = map_whole(mapping, fd, VIEW_FLAGS);
	if (!err)
		close(fd);
	return err;
}

int relay_mapping_map_ahead(struct relay_mapping *mapping, int fd, uint64_t bytes, bool writable)
{
	const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	return keep_descriptor(map_pages(mapping, fd, bytes, protection, MAP_SHARED), mapping, fd);
}

int relay_mapping_map_private(struct relay_mapping *mapping, int fd, uint64_t bytes)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	*mapping = (struct relay_mapping){.base = base, .bytes = bytes, .file = relay_descriptor_keep(fd)};
	return 0;
}

void relay_mapping_unmap(struct relay_mapping *mapping)
{
	guard_remove(mapping);
	munmap(mapping->base, mapping->bytes);
	relay_descriptor_close(&mapping->file);
}
