// Package cli is the framework of a program with verbs that asks a daemon or etcd.
//
//	words --parse--> commandLine{Verb, Flags, Args} --run--> Call --Verb.Run--> Printer
//
// parse finds the verb, its flags and its arguments, in any order. A [Call] is one run of a [Verb]:
// it selects the source that flags, environment and configuration name, and connects to it when it
// is asked first. A [Printer] writes the result in the form of -o. Help and completion follow from
// the fields of the verbs. [Run] turns errors into one line with a way out, and an exit code.
package cli
