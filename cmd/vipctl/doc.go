// Command vipctl is vipd's command-line client. It queries and controls the daemon of this host
// through its Unix socket, and reads and writes the fleet's state in etcd. Checking, rendering and
// cleaning up need neither.
//
// Each verb is a file with a cli.Verb and functions over a cli.Call; package cli is the framework.
// A new verb needs one file and one line in verbs (main.go). Its help, completion and output follow
// from the fields of the Verb.
//
// A change to services in etcd is an edit (edit.go): the user's files (given.go) become a plan,
// which reads etcd, checks the changes and writes them. The edit prints the results.
//
// Errors are values until cli.Run maps them to exit codes: 0 success, 1 failure, 2 wrong usage, 3
// differences, 4 a service is down, 130 interrupted.
package main
