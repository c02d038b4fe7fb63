// Package program lets tests use the built programs as a user does: it builds vipd, vipctl and the servers of the
// examples into a folder that looks like this tree, starts them, and runs command lines there.
//
// The daemon is started without any privilege, whoever runs the test: when that is root, as the user nobody.
package program
