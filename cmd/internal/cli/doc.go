// Package cli is a framework for a program whose verbs (subcommands) use a daemon or etcd.
//
//	words --parse--> commandLine{Verb, Flags, Args} --run--> Call --Verb.Run--> Printer
//
// parse finds the verb, its flags and its arguments, in any order. A [Call] is one invocation of a
// [Verb]. It chooses the daemon or etcd based on the flags, the environment and the configuration,
// and connects at the first request. A [Printer] writes the result in the format that -o selects.
// Help and completion are generated from the verbs' fields. [Run] turns errors into one line with
// advice, and an exit code.
package cli
