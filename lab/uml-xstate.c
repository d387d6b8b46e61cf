/*
 * Preloaded into the User-Mode-Linux kernel on processors whose XSAVE area is larger than the
 * 2,696 octets that Linux 6.1 reserves for it (those with AMX tiles; with-ipip-kernel).
 *
 * That kernel reads the vector registers of its processes with PTRACE_GETREGSET, which gives as
 * much as there is room for, and writes them with PTRACE_SETREGSET, which refuses everything but
 * the whole area (EFAULT; Linux: arch/x86/kernel/fpu/regset.c, xstateregs_set): the guest's first
 * process is killed, and its kernel panics. Here such a write is made as long as the area is. What
 * is added is zero: tiles alone lie behind the first 2,696 octets, and processes of the guest have
 * none, since they cannot ask for the permission to use them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#define NT_X86_XSTATE 0x202
/* More than any processor has (AMX: 11,008). */
#define LARGEST 65536

typedef long (*ptrace_fn)(int, ...);

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_fn real;
	static unsigned char area[LARGEST] __attribute__((aligned(64)));
	static size_t whole;
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if (!real)
		real = (ptrace_fn)dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
		return real(request, pid, address, data);

	const struct iovec *part = data;
	if (!whole) {
		struct iovec all = { area, sizeof(area) };
		if (real(PTRACE_GETREGSET, pid, address, &all) < 0)
			return -1;
		whole = all.iov_len;
		memset(area, 0, sizeof(area));
	}
	if (part->iov_len >= whole)
		return real(request, pid, address, data);
	memcpy(area, part->iov_base, part->iov_len);
	struct iovec all = { area, whole };
	return real(request, pid, address, &all);
}
