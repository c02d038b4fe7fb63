// Package windows runs vipd.exe as a service of Windows, under wine. The script wine here runs any program of Windows that
// Go has built, so that "make test-windows" also runs the tests of all packages that are not Linux's.
package windows
