/* A library with the functions of cuDNN's graph interface, for tests without a GPU. It computes nothing.

   FAKE_CUDNN_INSTANT and FAKE_CUDNN_FALLBACK list engines, a number and letters each: n is not deterministic, t has tensor cores,
   d converts operands down, c is compiled when it runs, f cannot be made a plan, w works in 2 GiB, x fails when it runs. The others
   work in 256 bytes times their number. FAKE_CUDNN_LOG names a file that gets a line for each object made, finished and destroyed, and each run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5 };
static const int size[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, [11] = 4, [15] = 8, [19] = 4};

typedef struct { int name, type; int64_t n; char v[256]; } attr_t;
typedef struct { int id, kind, count, engine; char flags[8]; attr_t attr[16]; } object_t;
static int made;

static void note(const char *what, object_t *o) {
	const char *path = getenv("FAKE_CUDNN_LOG");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (!f) return;
	fprintf(f, "%s %d kind %d", what, o->id, o->kind);
	for (int i = 0; i < o->count; i++) {
		attr_t *a = &o->attr[i];
		fprintf(f, " %d:%d=", a->name, a->type);
		for (int64_t k = 0; k < a->n; k++) {
			const char *p = a->v + k * size[a->type];
			if (k) fputc(',', f);
			if (a->type == 4) fprintf(f, "%g", *(float *)p);
			else if (a->type == 5) fprintf(f, "%g", *(double *)p);
			else if (a->type == 15) fprintf(f, "#%d", (*(object_t **)p)->id);
			else if (size[a->type] == 4) fprintf(f, "%d", *(int *)p);
			else fprintf(f, "%lld", (long long)*(int64_t *)p);
		}
	}
	fputc('\n', f);
	fclose(f);
}

static attr_t *find(object_t *o, int name) {
	for (int i = 0; i < o->count; i++)
		if (o->attr[i].name == name) return &o->attr[i];
	return NULL;
}

const char *cudnnGetErrorString(int rc) { return rc == 3000 ? "CUDNN_STATUS_NOT_SUPPORTED" : rc == 5000 ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_BAD_PARAM"; }

int cudnnBackendCreateDescriptor(int kind, object_t **out) {
	object_t *o = calloc(1, sizeof *o);
	o->id = ++made, o->kind = kind;
	note("make", o);
	*out = o;
	return 0;
}

int cudnnBackendDestroyDescriptor(object_t *o) {
	o->count = 0;
	note("destroy", o);
	free(o);
	return 0;
}

int cudnnBackendSetAttribute(object_t *o, int name, int type, int64_t n, const void *v) {
	if (o->count == 16 || n * size[type] > 256 || find(o, name)) return 2000;
	attr_t *a = &o->attr[o->count++];
	a->name = name, a->type = type, a->n = n;
	memcpy(a->v, v, n * size[type]);
	return 0;
}

int cudnnBackendFinalize(object_t *o) {
	note("finish", o);
	if (o->kind == PLAN) {
		object_t *c = *(object_t **)find(o, 401)->v;
		o->engine = c->engine;
		strcpy(o->flags, c->flags);
		if (strchr(o->flags, 'f')) return 3000;
	}
	return 0;
}

/* What the lists name, into configurations where there are any. */
static int64_t list(const char *text, int64_t n, object_t **to) {
	int64_t count = 0;
	for (int used; text && *text; text += used, count++) {
		int engine;
		char flags[8] = "";
		used = 0;
		if (sscanf(text, " %d%n", &engine, &used) < 1) break;
		int k = 0;
		while (text[used] && text[used] != ' ' && k < 7) flags[k++] = text[used++];
		flags[k] = 0;
		if (count < n) to[count]->engine = engine, strcpy(to[count]->flags, flags);
	}
	return count;
}

int cudnnBackendGetAttribute(object_t *o, int name, int type, int64_t n, int64_t *got, void *v) {
	int *notes = v;
	*got = 1;
	switch (name) {
	case 202:
		if (o->kind != HEURISTIC || type != 15) return 2000;
		*got = list(getenv(*(int *)find(o, 200)->v == 0 ? "FAKE_CUDNN_INSTANT" : "FAKE_CUDNN_FALLBACK"), n, v);
		return 0;
	case 300:
		if (o->kind != CONFIG || type != 15) return 2000;
		(*(object_t **)v)->engine = o->engine;
		strcpy((*(object_t **)v)->flags, o->flags);
		return 0;
	case 402:
		if (o->kind != PLAN || type != 3) return 2000;
		*(int64_t *)v = strchr(o->flags, 'w') ? 2LL << 30 : 256LL * o->engine;
		return 0;
	case 1301:
		if (o->kind != ENGINE || type != 3) return 2000;
		*(int64_t *)v = o->engine;
		return 0;
	case 1303:
		if (o->kind != ENGINE || type != 11) return 2000;
		*got = 0;
		if (strchr(o->flags, 't')) notes[(*got)++] = 0;
		if (strchr(o->flags, 'd')) notes[(*got)++] = 1;
		if (strchr(o->flags, 'n')) notes[(*got)++] = 4;
		return 0;
	case 1305:
		if (o->kind != ENGINE || type != 19) return 2000;
		*got = 0;
		if (strchr(o->flags, 'c')) notes[(*got)++] = 0;
		return 0;
	}
	return 2000;
}

int cudnnBackendExecute(void *handle, object_t *plan, object_t *pack) {
	(void)handle;
	note("run", pack);
	return strchr(plan->flags, 'x') ? 5000 : 0;
}
