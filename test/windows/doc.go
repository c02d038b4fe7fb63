// Package windows runs vipd.exe as a Windows service, under wine. The script wine runs any
// Windows program that Go has built, so "make test-windows" also runs the tests of all packages
// that are not specific to Linux.
package windows
