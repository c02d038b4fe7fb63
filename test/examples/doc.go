// Package examples runs every file of the examples folder: vipd serves it without privilege, with
// real servers as its endpoints, and the commands in its comments must work as described.
package examples
