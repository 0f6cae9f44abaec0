/*
 * A resolver for tests, loaded with LD_PRELOAD. The look-up of a name that begins with "held-" is noted in the folder
 * $HELD_LOOKUPS by a file NAME.calls with one byte per call, and waits for a file NAME there. It then finds 127.0.0.1,
 * or nothing if the file has bytes. All other names are looked up by the system.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAITS_MAX 30000

typedef int Resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    Resolver *system_resolver = (Resolver *) dlsym(RTLD_NEXT, "getaddrinfo");
    const char *folder = getenv("HELD_LOOKUPS");
    char path[4096];
    struct stat state;
    int calls, waits;
    if (name == NULL || folder == NULL || strncmp(name, "held-", 5) != 0 || (hints->ai_flags & AI_NUMERICHOST))
        return system_resolver(name, service, hints, found);
    snprintf(path, sizeof path, "%s/%s.calls", folder, name);
    calls = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (calls < 0 || write(calls, "x", 1) != 1) abort();
    close(calls);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (waits = 0; stat(path, &state) != 0 && waits < WAITS_MAX; waits++) usleep(1000);
    return state.st_size > 0 ? EAI_NONAME : system_resolver("127.0.0.1", service, hints, found);
}
