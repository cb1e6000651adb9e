// Added to Kubernetes' library for API servers: the one method that OpenShift's API server calls and that only
// OpenShift's variant of the library has.
package server

// RemoveOpenAPIData takes back the description of the API that PrepareRun has put up. A larger one comes into its place,
// and two cannot have the same path.
func (s *GenericAPIServer) RemoveOpenAPIData() {
	s.Handler.NonGoRestfulMux.Unregister("/openapi/v2")
	s.openAPIConfig = nil
	s.OpenAPIVersionedService = nil
	s.StaticOpenAPISpec = nil
}
