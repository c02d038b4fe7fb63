// Package cli is a framework for a program whose verbs (subcommands) use a daemon or etcd.
//
//	words --parse--> commandLine{Verb, Flags, Args} --run--> Call --Verb.Run--> Printer
//
// parse finds the verb, its flags and its arguments, in any order. A [Call] is one invocation of a
// [Verb]. It determines the source from flags, environment and configuration, and connects to the
// source at the first request. A [Printer] writes the result in the format of -o. Help and
// completion are generated from the fields of the verbs. [Run] turns errors into one line with
// advice, and an exit code.
package cli
