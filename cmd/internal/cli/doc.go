// Package cli is the framework of a program with verbs that use a daemon or etcd.
//
//	words --parse--> commandLine{Verb, Flags, Args} --run--> Call --Verb.Run--> Printer
//
// parse finds the verb, its flags and its arguments, in any order. A [Call] is one run of a [Verb]:
// it selects the source that flags, environment and configuration name, and connects to it at the
// first request. A [Printer] writes the result in the form of -o. Help and completion follow from
// the fields of the verbs. [Run] turns errors into one line with advice, and an exit code.
package cli
