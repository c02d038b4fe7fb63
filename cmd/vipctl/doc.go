// Command vipctl is the command line of vipd: it queries and controls the daemon of this host through its Unix socket,
// reads and writes what a fleet shares in etcd, and checks, renders and cleans up without either.
//
// A command line passes through three steps. arrange (args.go) finds the verb and its flags wherever they stand, and
// refuses what is wrong in a sentence. urfave/cli parses the flags and prints help. The verb's run function does the
// work with a call, which has a printer (the streams and the output form) and the connections to the daemon and to etcd.
//
//	vipctl -o json get services      ->  get -o json -- services
//	vipctl drain web 10.0.0.1 --wait ->  drain --wait -- web 10.0.0.1
//
// What is written to etcd is an edit (intent.go): read all, say what each service is to become, check that as a whole,
// then one transaction each from the revision that was read.
//
// Errors are values until main maps them to exit codes: 0 done, 1 it failed, 2 wrong use, 3 differences. A new verb is
// one file with its verb value and run function, and one line in verbs (verbs.go).
package main
