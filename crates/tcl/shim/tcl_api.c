/*
 * Tcl's C API with the same types for Tcl 8.6 and Tcl 9. This is the only file that differs between them: lengths are
 * int in 8.6 and Tcl_Size in 9, and some functions of 8.6 are macros or gone in 9. All calls go through the stub
 * table, so the library works with every later release of the same major version.
 */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tcl.h>

#if TCL_MAJOR_VERSION < 9
#define TCL_REQUIRED "8.6"
typedef int Tcl_Size;
#else
#define TCL_REQUIRED "9.0"
#endif

/* The functions of a channel driver: see Tcl_CreateChannel(3tcl). */
typedef struct {
    int (*close)(void *instance, Tcl_Interp *interp);
    int (*close2)(void *instance, Tcl_Interp *interp, int flags);
    int (*input)(void *instance, char *buffer, int size, int *error);
    int (*output)(void *instance, const char *buffer, int size, int *error);
    int (*set_option)(void *instance, Tcl_Interp *interp, const char *name, const char *value);
    int (*get_option)(void *instance, Tcl_Interp *interp, const char *name, Tcl_DString *into);
    void (*watch)(void *instance, int mask);
    int (*get_handle)(void *instance, int direction, void **handle);
    int (*block_mode)(void *instance, int mode);
    void (*thread_action)(void *instance, int action);
} ChannelProcs;

/* ---- Start ---- */

const char *stcl_init_stubs(Tcl_Interp *interp) { return Tcl_InitStubs(interp, TCL_REQUIRED, 0); }

int stcl_major_version(void) { return TCL_MAJOR_VERSION; }

int stcl_provide(Tcl_Interp *interp, const char *name, const char *version) {
    return Tcl_PkgProvideEx(interp, name, version, NULL);
}

void stcl_create_command(Tcl_Interp *interp, const char *name, Tcl_ObjCmdProc *proc, void *data) {
    Tcl_CreateObjCommand(interp, name, proc, data, NULL);
}

int stcl_hide_command(Tcl_Interp *interp, const char *name) { return Tcl_HideCommand(interp, name, name); }

/* ---- Values ---- */

Tcl_Obj *stcl_new_string(const char *bytes, size_t length) { return Tcl_NewStringObj(bytes, (Tcl_Size) length); }
Tcl_Obj *stcl_new_wide(int64_t value) { return Tcl_NewWideIntObj((Tcl_WideInt) value); }
Tcl_Obj *stcl_new_list(void) { return Tcl_NewListObj(0, NULL); }
Tcl_Obj *stcl_new_dict(void) { return Tcl_NewDictObj(); }
void stcl_list_append(Tcl_Obj *list, Tcl_Obj *element) { Tcl_ListObjAppendElement(NULL, list, element); }
void stcl_dict_put(Tcl_Obj *dict, Tcl_Obj *key, Tcl_Obj *value) { Tcl_DictObjPut(NULL, dict, key, value); }
void stcl_retain(Tcl_Obj *value) { Tcl_IncrRefCount(value); }
void stcl_release(Tcl_Obj *value) { Tcl_DecrRefCount(value); }

const char *stcl_string(Tcl_Obj *value, size_t *length) {
    Tcl_Size size = 0;
    const char *bytes = Tcl_GetStringFromObj(value, &size);
    *length = (size_t) size;
    return bytes;
}

int stcl_get_int(Tcl_Interp *interp, Tcl_Obj *value, int *into) { return Tcl_GetIntFromObj(interp, value, into); }
int stcl_get_wide(Tcl_Interp *interp, Tcl_Obj *value, int64_t *into) {
    Tcl_WideInt wide = 0;
    int code = Tcl_GetWideIntFromObj(interp, value, &wide);
    *into = (int64_t) wide;
    return code;
}
int stcl_get_boolean(Tcl_Interp *interp, Tcl_Obj *value, int *into) {
    return Tcl_GetBooleanFromObj(interp, value, into);
}

/* The elements of a list; valid while the list is unchanged. */
int stcl_list_elements(Tcl_Interp *interp, Tcl_Obj *list, size_t *count, Tcl_Obj ***elements) {
    Tcl_Size size = 0;
    int code = Tcl_ListObjGetElements(interp, list, &size, elements);
    *count = (size_t) size;
    return code;
}

/* ---- Results and errors ---- */

void stcl_reset_result(Tcl_Interp *interp) { Tcl_ResetResult(interp); }
void stcl_set_result(Tcl_Interp *interp, Tcl_Obj *value) { Tcl_SetObjResult(interp, value); }
void stcl_set_error_code(Tcl_Interp *interp, Tcl_Obj *code) { Tcl_SetObjErrorCode(interp, code); }

/* Sets errorCode from a system error and returns its text. */
const char *stcl_posix_error(Tcl_Interp *interp, int error) {
    Tcl_SetErrno(error);
    return Tcl_PosixError(interp);
}

const char *stcl_error_text(int error) { return Tcl_ErrnoMsg(error); }
const char *stcl_error_name(int error) {
    Tcl_SetErrno(error);
    return Tcl_ErrnoId();
}

int stcl_bad_channel_option(Tcl_Interp *interp, const char *name, const char *list) {
    return Tcl_BadChannelOption(interp, name, list);
}

/* ---- Interpreters ---- */

const char *stcl_global(Tcl_Interp *interp, const char *name) {
    return Tcl_GetVar2(interp, name, NULL, TCL_GLOBAL_ONLY);
}

int stcl_is_deleted(Tcl_Interp *interp) { return Tcl_InterpDeleted(interp); }
void stcl_call_when_deleted(Tcl_Interp *interp, Tcl_InterpDeleteProc *proc, void *data) {
    Tcl_CallWhenDeleted(interp, proc, data);
}
void stcl_dont_call_when_deleted(Tcl_Interp *interp, Tcl_InterpDeleteProc *proc, void *data) {
    Tcl_DontCallWhenDeleted(interp, proc, data);
}

/* Evaluates a script at global level; an error becomes a background error. Returns the script's code. */
int stcl_evaluate_in_background(Tcl_Interp *interp, Tcl_Obj *script) {
    int code;
    Tcl_Preserve(interp);
    Tcl_IncrRefCount(script);
    code = Tcl_EvalObjEx(interp, script, TCL_EVAL_GLOBAL);
    if (code != TCL_OK) Tcl_BackgroundException(interp, code);
    Tcl_DecrRefCount(script);
    Tcl_Release(interp);
    return code;
}

void stcl_preserve_interp(Tcl_Interp *interp) { Tcl_Preserve(interp); }
void stcl_release_interp(Tcl_Interp *interp) { Tcl_Release(interp); }

/* ---- Channels ---- */

/* A channel type that lasts as long as the process. */
const Tcl_ChannelType *stcl_channel_type(const char *name, const ChannelProcs *procs) {
    Tcl_ChannelType *type = calloc(1, sizeof *type);
    if (type == NULL) abort();
    type->typeName = name;
    type->version = TCL_CHANNEL_VERSION_5;
#if TCL_MAJOR_VERSION < 9
    type->closeProc = procs->close;
#endif
    type->inputProc = procs->input;
    type->outputProc = procs->output;
    type->setOptionProc = procs->set_option;
    type->getOptionProc = procs->get_option;
    type->watchProc = procs->watch;
    type->getHandleProc = procs->get_handle;
    type->close2Proc = procs->close2;
    type->blockModeProc = procs->block_mode;
    type->threadActionProc = procs->thread_action;
    return type;
}

Tcl_Channel stcl_create_channel(const Tcl_ChannelType *type, const char *name, void *instance, int mask) {
    return Tcl_CreateChannel(type, name, instance, mask);
}

/* Calls `proc` when the channel begins to close: before its buffers are flushed, and before it leaves its thread. */
void stcl_on_closing(Tcl_Channel channel, Tcl_CloseProc *proc, void *data) {
    Tcl_CreateCloseHandler(channel, proc, data);
}

void stcl_register_channel(Tcl_Interp *interp, Tcl_Channel channel) { Tcl_RegisterChannel(interp, channel); }
void stcl_unregister_channel(Tcl_Interp *interp, Tcl_Channel channel) { Tcl_UnregisterChannel(interp, channel); }
void stcl_close_channel(Tcl_Channel channel) {
#if TCL_MAJOR_VERSION < 9
    Tcl_Close(NULL, channel);
#else
    Tcl_CloseEx(NULL, channel, 0);
#endif
}
const char *stcl_channel_name(Tcl_Channel channel) { return Tcl_GetChannelName(channel); }
void stcl_set_channel_option(Tcl_Channel channel, const char *name, const char *value) {
    Tcl_SetChannelOption(NULL, channel, name, value);
}
void stcl_notify_channel(Tcl_Channel channel, int mask) { Tcl_NotifyChannel(channel, mask); }
int stcl_is_channel_registered(Tcl_Interp *interp, Tcl_Channel channel) {
    return Tcl_IsChannelRegistered(interp, channel);
}

/*
 * Whether a script has closed the channel, whose output is still written in the background: writing is rejected although
 * the channel has that direction. The first of two checks may return the unreported error of a background flush.
 */
int stcl_is_closed_by_script(Tcl_Channel channel) {
    int check;
    if (!(Tcl_GetChannelMode(channel) & TCL_WRITABLE)) return 0;
    for (check = 0; check < 2; check++) {
        if (Tcl_Write(channel, "", 0) == 0) return 0;
        if (Tcl_GetErrno() == EACCES) return 1;
    }
    return 0;
}

int stcl_buffer_size(Tcl_Channel channel) { return Tcl_GetChannelBufferSize(channel); }

/* ---- Channels of any type, for copies between them ---- */

/* The channel of this name in an interpreter, with its directions; NULL, with a message, if there is none. */
Tcl_Channel stcl_find_channel(Tcl_Interp *interp, const char *name, int *mask) {
    return Tcl_GetChannel(interp, name, mask);
}

/* Whether the thread has a channel of this name, in any interpreter. */
int stcl_is_channel_existing(const char *name) { return Tcl_IsChannelExisting(name); }

/* Whether the channel has a transform, or is one. */
int stcl_is_stacked(Tcl_Channel channel) {
    return Tcl_GetTopChannel(channel) != channel || Tcl_GetStackedChannel(channel) != NULL;
}

const char *stcl_channel_type_name(Tcl_Channel channel) {
    return Tcl_ChannelName((Tcl_ChannelType *) Tcl_GetChannelType(channel));
}

/* The instance of a channel of this type; NULL for other types. */
void *stcl_instance_of(Tcl_Channel channel, const Tcl_ChannelType *type) {
    return Tcl_GetChannelType(channel) == type ? Tcl_GetChannelInstanceData(channel) : NULL;
}

/* The descriptor for a direction, which stays the channel's; -1: there is none. */
int stcl_descriptor(Tcl_Channel channel, int direction) {
    void *handle = NULL;
    return Tcl_GetChannelHandle(channel, direction, &handle) == TCL_OK ? (int) (intptr_t) handle : -1;
}

/* Copies the text of an option, without a zero byte; -1: there is no such option, or its text is longer. */
int stcl_copy_option(Tcl_Channel channel, const char *name, char *into, size_t size) {
    Tcl_DString text;
    int length = -1;
    Tcl_DStringInit(&text);
    if (Tcl_GetChannelOption(NULL, channel, name, &text) == TCL_OK && (size_t) Tcl_DStringLength(&text) <= size) {
        length = (int) Tcl_DStringLength(&text);
        memcpy(into, Tcl_DStringValue(&text), (size_t) length);
    }
    Tcl_DStringFree(&text);
    return length;
}

size_t stcl_input_buffered(Tcl_Channel channel) { return (size_t) Tcl_InputBuffered(channel); }
size_t stcl_output_buffered(Tcl_Channel channel) { return (size_t) Tcl_OutputBuffered(channel); }

/* Reads at most `size` bytes; -1: Tcl_GetErrno has the error. */
int64_t stcl_read(Tcl_Channel channel, char *into, int size) {
    return (int64_t) Tcl_Read(channel, into, size);
}

/* Writes nothing; -1: the channel cannot be written to, Tcl_GetErrno has the reason. */
int stcl_check_write(Tcl_Channel channel) { return Tcl_Write(channel, "", 0) == 0 ? 0 : -1; }

/* Writes bytes without an encoding; -1: Tcl_GetErrno has the error. */
int stcl_write(Tcl_Channel channel, const char *bytes, int size) {
    return Tcl_Write(channel, bytes, size) == size ? 0 : -1;
}

/*
 * Copies at most `count` characters to another channel, with the encodings, translations and transforms of both.
 * Returns their number; -1: the read failed, -2: the write failed, Tcl_GetErrno has the error.
 */
int64_t stcl_copy_characters(Tcl_Channel input, Tcl_Channel output, int count) {
    int64_t copied;
    Tcl_Obj *characters = Tcl_NewObj();
    Tcl_IncrRefCount(characters);
    copied = (int64_t) Tcl_ReadChars(input, characters, count, 0);
    if (copied < 0) {
        copied = -1;
    } else if (copied > 0 && Tcl_WriteObj(output, characters) < 0) {
        copied = -2;
    }
    Tcl_DecrRefCount(characters);
    return copied;
}

int stcl_is_readable(Tcl_Channel channel) { return (Tcl_GetChannelMode(channel) & TCL_READABLE) != 0; }

int stcl_is_at_end(Tcl_Channel channel) { return Tcl_Eof(channel); }

/* Writes what is buffered, in the background if the channel does not block; -1: Tcl_GetErrno has the error. */
int stcl_flush(Tcl_Channel channel) { return Tcl_Flush(channel) == TCL_OK ? 0 : -1; }

int stcl_errno(void) { return Tcl_GetErrno(); }

void stcl_create_channel_handler(Tcl_Channel channel, int mask, Tcl_ChannelProc *proc, void *data) {
    Tcl_CreateChannelHandler(channel, mask, proc, data);
}
void stcl_delete_channel_handler(Tcl_Channel channel, Tcl_ChannelProc *proc, void *data) {
    Tcl_DeleteChannelHandler(channel, proc, data);
}
void stcl_delete_close_handler(Tcl_Channel channel, Tcl_CloseProc *proc, void *data) {
    Tcl_DeleteCloseHandler(channel, proc, data);
}

/* Runs another command's implementation with these words; -1: there is none. */
int stcl_run_command(Tcl_Interp *interp, const char *name, int count, Tcl_Obj *const *words) {
    Tcl_CmdInfo info;
    if (!Tcl_GetCommandInfo(interp, name, &info) || info.objProc == NULL) return -1;
    return info.objProc(info.objClientData, interp, count, words);
}

/* ---- Lists of options ---- */

void stcl_append(Tcl_DString *into, const char *bytes, size_t length) {
    Tcl_DStringAppend(into, bytes, (Tcl_Size) length);
}
void stcl_append_element(Tcl_DString *into, const char *element) { Tcl_DStringAppendElement(into, element); }
void stcl_start_sublist(Tcl_DString *into) { Tcl_DStringStartSublist(into); }
void stcl_end_sublist(Tcl_DString *into) { Tcl_DStringEndSublist(into); }

/* ---- Events ---- */

typedef int QueuedEventProc(uint64_t target, int flags);

typedef struct {
    Tcl_Event header;
    QueuedEventProc *proc;
    uint64_t target;
} QueuedEvent;

static int run_queued_event(Tcl_Event *event, int flags) {
    QueuedEvent *queued = (QueuedEvent *) event;
    return queued->proc(queued->target, flags);
}

/* Queues a call of `proc`, which returns 0 to stay in the queue. */
void stcl_queue_event(QueuedEventProc *proc, uint64_t target) {
    QueuedEvent *queued = (QueuedEvent *) Tcl_Alloc(sizeof *queued);
    memset(queued, 0, sizeof *queued);
    queued->header.proc = run_queued_event;
    queued->proc = proc;
    queued->target = target;
    Tcl_QueueEvent(&queued->header, TCL_QUEUE_TAIL);
}

void stcl_create_event_source(Tcl_EventSetupProc *setup, Tcl_EventCheckProc *check, void *data) {
    Tcl_CreateEventSource(setup, check, data);
}
void stcl_delete_event_source(Tcl_EventSetupProc *setup, Tcl_EventCheckProc *check, void *data) {
    Tcl_DeleteEventSource(setup, check, data);
}
void stcl_create_thread_exit_handler(Tcl_ExitProc *proc, void *data) { Tcl_CreateThreadExitHandler(proc, data); }

void stcl_limit_wait(uint64_t microseconds) {
    Tcl_Time limit;
    limit.sec = (long) (microseconds / 1000000);
    limit.usec = (long) (microseconds % 1000000);
    Tcl_SetMaxBlockTime(&limit);
}

/* Makes this thread's coming wait return at once, without a look at other files. */
void stcl_skip_wait(void) { Tcl_ThreadAlert(Tcl_GetCurrentThread()); }

/* The function of the notifier's events for files; NULL if it is not known. The same for all threads. */
static Tcl_EventProc *file_event_proc;

static void ignore_file(void *data, int mask) {
    (void) data;
    (void) mask;
}

static int note_event(Tcl_Event *event, void *last) {
    *(Tcl_EventProc **) last = event->proc;
    return 0;
}

/* Starts the notifier, which Tcl 8.6 does with its first wait: it ends the process if it lacks descriptors then. */
void stcl_start_notifier(void) { Tcl_SetServiceMode(Tcl_SetServiceMode(TCL_SERVICE_ALL)); }

/* Learns how events for files can be told from others: the notifier queues one for this readable file, as the last
 * event. It does nothing when it is handled, since its handler is gone. */
void stcl_learn_file_events(int readable) {
    Tcl_Time now = {0, 0};
    Tcl_EventProc *last = NULL;
    Tcl_CreateFileHandler(readable, TCL_READABLE, ignore_file, NULL);
    Tcl_WaitForEvent(&now);
    Tcl_DeleteEvents(note_event, &last);
    Tcl_DeleteFileHandler(readable);
    if (last != NULL && last != run_queued_event) __atomic_store_n(&file_event_proc, last, __ATOMIC_RELAXED);
}

struct file_search {
    Tcl_EventProc *proc;
    int is_found;
};

static int find_file_event(Tcl_Event *event, void *data) {
    struct file_search *search = data;
    /* The event that is being handled has no function. */
    int is_other = event->proc != NULL && event->proc != run_queued_event;
    if (is_other && (search->proc == NULL || event->proc == search->proc)) search->is_found = 1;
    return 0;
}

/* Whether this thread's queue has events for files, or for any other source if they cannot be told apart. */
int stcl_has_file_events(void) {
    struct file_search search = {__atomic_load_n(&file_event_proc, __ATOMIC_RELAXED), 0};
    Tcl_DeleteEvents(find_file_event, &search);
    return search.is_found;
}

void *stcl_current_thread(void) { return (void *) Tcl_GetCurrentThread(); }
void stcl_alert_thread(void *thread) { Tcl_ThreadAlert((Tcl_ThreadId) thread); }
