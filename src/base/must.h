/* Assertions that stay on: what must hold whatever a client, an operator or a disk does.
 *
 * A failed must() is a bug of ours: it logs where, prints a backtrace and aborts; the service
 * manager restarts the process. Nothing that comes from outside is checked with must(). */
#ifndef QUIRE_BASE_MUST_H
#define QUIRE_BASE_MUST_H

_Noreturn void must_failed(const char *cond, const char *file, int line);

#define must(cond) ((cond) ? (void)0 : must_failed(#cond, __FILE__, __LINE__))

#endif
