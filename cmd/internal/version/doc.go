// Package version identifies the build of vipd and vipctl. A release build sets the version:
//
//	go build -ldflags "-X vipd/cmd/internal/version.Version=v1.2.3" ./cmd/vipd
//
// The commit and the Go version come from the build information that Go embeds in a program.
package version
