package cli

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"

	"vipd/balancer/lib/sockerr"
	"vipd/store/etcd/client"
)

// remedy returns the remedy for a system error whose text describes only the symptom. It returns ""
// for other errors.
func remedy(err error) string {
	switch {
	case client.Untrusted(err):
		return "; check the certificates of both ends, and the settings ca_file and cert_file: openssl x509 -noout -issuer -dates -ext subjectAltName -in FILE"
	case client.Unreachable(err):
		return "; start etcd there, or set its address with --etcd URL,..., VIPCTL_ETCD, or endpoints of [etcd] in the config"
	case client.Full(err):
		return "; hosts continue to serve; " + client.FullRemedy
	case errors.Is(err, exec.ErrNotFound):
		return "; install it, or write its full path"
	case errors.Is(err, fs.ErrPermission):
		return "; use sudo, or choose a path that you can access"
	case sockerr.Is(err, syscall.ENOSPC, syscall.EDQUOT):
		return "; free space there, or write elsewhere"
	case sockerr.Is(err, syscall.EROFS):
		return "; write elsewhere"
	case sockerr.Exhausted(err):
		return "; raise the limit of open files (ulimit -n)"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), sockerr.Is(err, syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG, syscall.ELOOP):
		return "; check the name"
	}
	return ""
}
