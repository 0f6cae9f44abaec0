/* An extension of Tcl with one fault of each kind that Valgrind must report: the check of the checker. */
#include <stdlib.h>

enum { KEPT = 20 };

void *volatile kept[KEPT];
volatile int taken;

int Faults_Init(void *interp) {
    (void)interp;
    int *volatile block = malloc(4 * sizeof(int));
    taken = block[4];               /* a read behind the block */
    if (block[0] == 7) taken = 1;   /* a jump that depends on uninitialised memory */
    block = NULL;                   /* the only reference */
    for (int i = 0; i < KEPT; i++) kept[i] = malloc(100);
    return 0;
}
