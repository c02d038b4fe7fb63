// Package examples runs every file in the examples folder. vipd serves the file without privilege,
// with real servers as its endpoints. The commands in the file's comments must work as described.
package examples
