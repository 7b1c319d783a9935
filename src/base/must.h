/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions that stay on in every build: conditions that hold whatever a client, an operator or a
 * disk does.
 *
 * A failed must() is a bug of quire: it logs the place, prints a backtrace and aborts; the service
 * manager restarts the process. Never check input from outside with must(). */
#ifndef QUIRE_BASE_MUST_H
#define QUIRE_BASE_MUST_H

_Noreturn void must_failed(const char *cond, const char *file, int line);

#define must(cond) ((cond) ? (void)0 : must_failed(#cond, __FILE__, __LINE__))

#endif
