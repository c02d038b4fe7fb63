// Package program lets tests use the built programs like a user. It builds vipd, vipctl and the
// servers of the examples into a directory with the layout of this tree, starts them, and runs
// command lines there.
//
// The daemon starts without any privilege: if root runs the test, it runs as the user nobody.
package program
