package main

// topics are the help texts that belong to no command.
var topics = []struct{ name, short, text string }{
	{"exit-codes", "What memplan's exit codes mean", `0  yes: it fits, no regression, validated
1  no: it does not fit, a rule failed, a prediction was refuted
2  could not tell: usage, an unreadable model, an unbound dimension, no GPU

The same for every command and every --format. On 2 nothing goes to stdout.
`},
	{"formats", "Output formats", `text      for people; a table, the largest tensors, a timeline
json      for scripts; fields are added within schemaVersion, never renamed
markdown  for pull requests; begins with a hidden line so that a comment can be updated
sarif     for code scanning (check)
html      one self-contained page (analyze)

The result alone goes to stdout; progress and warnings go to stderr.
`},
	{"environment", "Environment variables", `NO_COLOR        any value turns colour off
CLICOLOR=0      turns colour off
CLICOLOR_FORCE  any value but 0 turns colour on
`},
	{"memory", "The four memory numbers", `requested  bytes of live tensors
allocated  what torch.cuda.max_memory_allocated shows: block sizes after rounding and splitting
reserved   what torch.cuda.max_memory_reserved shows: segments held by the caching allocator
process    reserved and the CUDA context: what the card must have free

Whether a step fits is decided by replaying the allocator under the cap, not by
comparing a peak with it.
`},
}
