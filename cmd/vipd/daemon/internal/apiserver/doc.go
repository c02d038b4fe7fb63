// Package apiserver answers the requests of the API's socket, which vipctl makes
// (cmd/internal/api).
//
//	request -> httpserve -> may the caller change vipd? -> a view of one moment, or a part that does what was requested -> JSON
//
// Package status has the views. Package apiserver has no state.
package apiserver
