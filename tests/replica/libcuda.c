/* Stands in for the CUDA driver's checkpoint functions. It keeps the state of each process in a
   file of the folder DRIVER_STATES, and follows the documented transitions: running (0), locked (1),
   checkpointed (2). A call in another state returns CUDA_ERROR_ILLEGAL_STATE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, ILLEGAL_STATE = 401, TIMEOUT = 909 };

static int initialised = 0;

static void path_of(int pid, char *path) { sprintf(path, "%s/%d", getenv("DRIVER_STATES"), pid); }

static int state_of(int pid) {
  char path[4096];
  path_of(pid, path);
  FILE *file = fopen(path, "r");
  int state = -1;
  if (file) {
    if (fscanf(file, "%d", &state) != 1) state = -1;
    fclose(file);
  }
  return state;
}

static int move(int pid, int from, int to) {
  char path[4096];
  if (!initialised) return NOT_INITIALIZED;
  if (state_of(pid) < 0) return INVALID_VALUE;
  if (state_of(pid) != from) return ILLEGAL_STATE;
  path_of(pid, path);
  FILE *file = fopen(path, "w");
  fprintf(file, "%d", to);
  fclose(file);
  return 0;
}

static int is_zero(const char *bytes, int from, int to) {
  for (int at = from; at < to; at++)
    if (bytes[at]) return 0;
  return 1;
}

static int fails(const char *name) {
  const char *failing = getenv("DRIVER_FAILS");
  if (getenv("DRIVER_HANGS")) sleep(60);
  return failing && !strcmp(failing, name);
}

int cuInit(unsigned int flags) {
  initialised = flags == 0;
  return 0;
}

int cuGetErrorName(int code, const char **name) {
  *name = code == ILLEGAL_STATE ? "CUDA_ERROR_ILLEGAL_STATE" : "CUDA_ERROR_UNKNOWN";
  return 0;
}

/* The first member of CUcheckpointLockArgs is the timeout; all others must be zero. */
int cuCheckpointProcessLock(int pid, const char *args) {
  unsigned int timeout;
  memcpy(&timeout, args, sizeof timeout);
  if (timeout != 10000 || !is_zero(args, 4, 64)) return INVALID_VALUE;
  return fails("Lock") ? TIMEOUT : move(pid, 0, 1);
}

int cuCheckpointProcessCheckpoint(int pid, const char *args) {
  if (!is_zero(args, 0, 64)) return INVALID_VALUE;
  return fails("Checkpoint") ? 2 : move(pid, 1, 2);
}

int cuCheckpointProcessRestore(int pid, const char *args) {
  if (!is_zero(args, 0, 64)) return INVALID_VALUE;
  return fails("Restore") ? 2 : move(pid, 2, 1);
}

int cuCheckpointProcessUnlock(int pid, const char *args) {
  return is_zero(args, 0, 64) ? move(pid, 1, 0) : INVALID_VALUE;
}

int cuCheckpointProcessGetState(int pid, int *state) {
  *state = state_of(pid);
  return *state < 0 ? INVALID_VALUE : 0;
}
