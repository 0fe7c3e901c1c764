"""Recording of one episode in plain MuJoCo; whatever steps the model calls the recorder."""
