package sockerr

import (
	"errors"
	"runtime"
	"slices"
	"syscall"
)

// Is reports whether err is one of the errors in among.
func Is(err error, among ...syscall.Errno) bool {
	return slices.ContainsFunc(among, func(e syscall.Errno) bool { return errors.Is(err, numberOn(runtime.GOOS, e)) })
}

// Exhausted reports whether the process or the system has run out of descriptors, or of memory for
// sockets.
func Exhausted(err error) bool {
	return Is(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM)
}

// winsock maps errors to their numbers on Windows (winsock2.h).
var winsock = map[syscall.Errno]syscall.Errno{
	syscall.EINTR: 10004, syscall.EACCES: 10013, syscall.EMFILE: 10024, syscall.EMSGSIZE: 10040, syscall.ENOPROTOOPT: 10042,
	syscall.EADDRINUSE: 10048, syscall.EADDRNOTAVAIL: 10049, syscall.ENETUNREACH: 10051, syscall.ECONNABORTED: 10053,
	syscall.ECONNRESET: 10054, syscall.ENOBUFS: 10055, syscall.ENOTCONN: 10057, syscall.ETIMEDOUT: 10060,
	syscall.ECONNREFUSED: 10061, syscall.EHOSTUNREACH: 10065,
}

// numberOn returns the number of an error on an operating system.
func numberOn(system string, e syscall.Errno) syscall.Errno {
	if number := winsock[e]; system == "windows" && number != 0 {
		return number
	}
	return e
}
