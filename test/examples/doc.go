// Package examples runs every file of the examples folder: vipd serves it without privilege, real servers are at its
// endpoints, and the commands in its comments do what they say.
package examples
